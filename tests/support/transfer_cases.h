#ifndef INFERSCALE_TESTS_SUPPORT_TRANSFER_CASES_H_
#define INFERSCALE_TESTS_SUPPORT_TRANSFER_CASES_H_

/// \file transfer_cases.h
/// Tests of a DeviceTransfer against kernels/cpu, for any Device. Each case is a geometry, a layout
/// and requests made up from a number; a failure names the number.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "kernels/kernels.h"
#include "support/transfer_scene.h"

namespace inferscale::kernels::transfer_cases {

/// Captures with both, compares the payloads, injects them elsewhere with both and compares the
/// whole caches.
inline void ExpectSameAsCpu(Device& device, std::uint64_t number) {
  Dice dice(number);
  const Scene scene = MakeScene(number, dice);
  SCOPED_TRACE("case " + std::to_string(number) + ": " + Describe(scene));
  Stage stage(device, scene, RandomCache(scene, dice));
  const std::uintptr_t stream = device.copy_stream();
  const auto max_blocks = scene.paged() ? static_cast<std::int32_t>(scene.physical_blocks) : 0;
  const auto transfer = stage.Transfer(24 * 4, max_blocks);
  ASSERT_NE(transfer, nullptr);

  const Step capture = MakeStep(scene, dice, /*whole_facts=*/true);
  PayloadMemory payloads(capture.payload_bytes, 0xcd);
  DeviceBytes device_payloads(device, payloads.Get());
  ASSERT_EQ(stage.OnHost(false, capture, payloads.data()), KernelStatus::kOk);
  ASSERT_EQ(stage.OnDevice(false, *transfer, capture, device_payloads.address(), stream),
            KernelStatus::kOk);
  Finish(device, stream);
  const Bytes captured = device_payloads.Get();
  const Bytes expected = payloads.Get();
  const std::size_t different = FirstDifference(expected, captured);
  ASSERT_EQ(different, std::string::npos)
      << "captured payloads: " << DescribePayloadByte(scene, capture, different) << ": "
      << static_cast<int>(captured[different]) << ", not " << static_cast<int>(expected[different]);
  ASSERT_EQ(FirstDifference(stage.host_cache, stage.device_cache.Get()), std::string::npos)
      << "a capture writes nothing into the cache";

  // The same payloads, some in part, to other slots and positions.
  Step inject = MakeStep(scene, dice, /*whole_facts=*/false);
  std::erase_if(inject.facts, [&](const FactDescriptor& fact) {
    return std::none_of(capture.facts.begin(), capture.facts.end(), [&](const auto& source) {
      return source.tokens >= fact.first + fact.count;
    });
  });
  for (FactDescriptor& fact : inject.facts) {
    std::vector<FactDescriptor> sources;
    for (const FactDescriptor& source : capture.facts) {
      if (source.tokens >= fact.first + fact.count) sources.push_back(source);
    }
    const FactDescriptor& source =
        sources[static_cast<std::size_t>(dice.Between(0, static_cast<int>(sources.size()) - 1))];
    fact.payload = source.payload;
    fact.tokens = source.tokens;
  }
  ASSERT_EQ(stage.OnHost(true, inject, payloads.data()), KernelStatus::kOk);
  ASSERT_EQ(stage.OnDevice(true, *transfer, inject, device_payloads.address(), stream),
            KernelStatus::kOk);
  Finish(device, stream);
  ASSERT_EQ(FirstDifference(stage.host_cache, stage.device_cache.Get()), std::string::npos)
      << "the cache after an injection";
  ASSERT_EQ(FirstDifference(captured, device_payloads.Get()), std::string::npos)
      << "an injection writes nothing into the payloads";
}

/// INFERSCALE_TEST_CASES sets another number of cases, for slow checkers.
inline std::uint64_t Cases(std::uint64_t usual) {
  const char* wanted = std::getenv("INFERSCALE_TEST_CASES");
  return wanted == nullptr ? usual : std::strtoull(wanted, nullptr, 10);
}

/// Hundreds of calls before anything is waited for, whose arguments the ring cannot all hold.
inline void ExpectManyCallsInFlight(Device& device) {
  Dice dice(4242);
  Scene scene = MakeScene(/*number=*/1 + 5 * 2, dice);  // f16 codec, bf16 cache, paged
  const Bytes cache = RandomCache(scene, dice);
  Stage stage(device, scene, cache);
  const auto blocks = static_cast<std::int32_t>(scene.physical_blocks);
  const std::int32_t large_table = 2000;  // more than a kernel's parameters hold
  const auto transfer = stage.Transfer(8, large_table);
  ASSERT_NE(transfer, nullptr);
  const std::int32_t tokens = 5, facts = 4;
  const auto payload = static_cast<std::int64_t>(PayloadBytes(scene.view, tokens));
  PayloadMemory payloads(payload * facts, 0);
  for (std::int64_t i = 0; i < payload * facts; i += 2) {
    payloads.data()[i] = static_cast<std::uint8_t>(i * 7);
    payloads.data()[i + 1] = static_cast<std::uint8_t>(0x34 + i % 8);
  }
  DeviceBytes device_payloads(device, payloads.Get());
  for (std::int32_t call = 0; call < 500; ++call) {
    Step step;
    for (std::int32_t block = 0; block < blocks; ++block) step.table.push_back(block);
    dice.Shuffle(step.table);
    if (call % 3 != 0) step.table.resize(large_table);
    const auto slots = static_cast<std::int32_t>(scene.layout.slots);
    const std::int32_t first = dice.Between(0, slots - tokens * facts);
    for (std::int32_t i = 0; i < dice.Between(1, facts); ++i) {
      step.facts.push_back({reinterpret_cast<std::uint8_t*>(i * payload), tokens, 0, tokens,
                            dice.Between(0, 1000), first + i * tokens});
    }
    ASSERT_EQ(stage.OnHost(true, step, payloads.data()), KernelStatus::kOk);
    ASSERT_EQ(
        stage.OnDevice(true, *transfer, step, device_payloads.address(), device.copy_stream()),
        KernelStatus::kOk);
  }
  Finish(device, device.copy_stream());
  EXPECT_EQ(FirstDifference(stage.host_cache, stage.device_cache.Get()), std::string::npos);
}

/// What kernels.h and device.h say is refused, is, and nothing is written.
inline void ExpectRefusals(Device& device) {
  Dice dice(7);
  Scene scene = MakeScene(/*number=*/1 + 5 * 2, dice);
  scene.layer_group.assign(scene.layer_group.size(), 0);
  const Bytes cache = RandomCache(scene, dice);
  Stage stage(device, scene, cache);
  const auto blocks = static_cast<std::int32_t>(scene.physical_blocks);
  const auto transfer = stage.Transfer(2, blocks - 1);
  ASSERT_NE(transfer, nullptr);
  DeviceBytes payloads(device, Bytes(PayloadBytes(scene.view, 6) + 16));
  const auto block_slots = static_cast<std::int32_t>(scene.layout.block_slots);
  const FactDescriptor good{payloads.address(), 6, 0, 6, 3, 0};
  std::vector<std::int32_t> table{0, 1, 2};
  for (const auto call : {&DeviceTransfer::Inject, &DeviceTransfer::Capture}) {
    const auto status = [&](std::vector<FactDescriptor> facts) {
      return ((*transfer).*call)(facts.data(), static_cast<std::int32_t>(facts.size()),
                                 table.data(), static_cast<std::int32_t>(table.size()),
                                 device.copy_stream());
    };
    EXPECT_EQ(status({}), KernelStatus::kOk);
    EXPECT_EQ(status({good, good, good}), KernelStatus::kBadDescriptor);
    EXPECT_EQ(((*transfer).*call)(nullptr, 1, table.data(), 3, 0), KernelStatus::kBadDescriptor);
    EXPECT_EQ(((*transfer).*call)(&good, -1, table.data(), 3, 0), KernelStatus::kBadDescriptor);
    EXPECT_EQ(((*transfer).*call)(&good, 1, table.data(), -3, 0), KernelStatus::kBadDescriptor);
    EXPECT_EQ(((*transfer).*call)(&good, 1, nullptr, 3, 0), KernelStatus::kBadDescriptor);
    const auto spoilt = [&](auto spoil) {
      FactDescriptor fact = good;
      spoil(fact);
      return status({good, fact});
    };
    const auto bad = KernelStatus::kBadDescriptor;
    EXPECT_EQ(spoilt([](auto& f) { f.payload = nullptr; }), bad);
    EXPECT_EQ(spoilt([](auto& f) { f.payload += 8; }), bad);
    EXPECT_EQ(spoilt([](auto& f) { f.count = 7; }), bad);
    EXPECT_EQ(spoilt([](auto& f) { f.count = 0; }), bad);
    EXPECT_EQ(spoilt([](auto& f) { f.first = -1; }), bad);
    EXPECT_EQ(spoilt([](auto& f) { f.tokens = 0; }), bad);
    EXPECT_EQ(spoilt([](auto& f) { f.position = -1; }), bad);
    EXPECT_EQ(spoilt([&](auto& f) { f.position = scene.rope.positions - 5; }), bad);
    EXPECT_EQ(spoilt([](auto& f) { f.slot = -1; }), bad);
    EXPECT_EQ(spoilt([&](auto& f) { f.slot = 3 * block_slots - 5; }), bad) << "past the table";
    table[0] = blocks;
    EXPECT_EQ(status({good}), bad) << "a block outside the cache";
    table[0] = -1;
    EXPECT_EQ(status({good}), bad);
    table[0] = 0;
    table.resize(static_cast<std::size_t>(blocks));
    EXPECT_EQ(status({good}), bad) << "more blocks than the setup allows";
    table.resize(3);
  }
  Finish(device, device.copy_stream());
  EXPECT_EQ(FirstDifference(cache, stage.device_cache.Get()), std::string::npos);

  const auto refused = [&](auto spoil) {
    TransferSetup setup = stage.Setup(2, 3);
    spoil(setup);
    const auto made = device.MakeTransfer(setup);
    return !made.ok() && made.status().code() == StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](auto& s) { s.max_facts = 0; }));
  EXPECT_TRUE(refused([](auto& s) { s.max_table_blocks = -1; }));
  EXPECT_TRUE(refused([](auto& s) { s.view.kv_heads = 0; }));
  EXPECT_TRUE(refused([](auto& s) { s.view.codec = static_cast<KvCodec>(9); }));
  EXPECT_TRUE(refused([](auto& s) { s.rope.width += 1; }));
  EXPECT_TRUE(refused([](auto& s) { s.rope.layer_group = nullptr; }));
  EXPECT_TRUE(refused([](auto& s) { s.layout.key_base = nullptr; }));
  EXPECT_TRUE(refused([](auto& s) { s.layout.block_slots = 0; }));
}

/// Copies, events and memory.
inline void ExpectDeviceWorks(Device& device) {
  Bytes bytes(1000);
  std::iota(bytes.begin(), bytes.end(), 0);
  DeviceBytes a(device, bytes), b(device, Bytes(1000));
  ASSERT_TRUE(device.CopyOnDevice(b.address(), a.address(), 1000, 0).ok());
  const auto event = device.Record(0);
  ASSERT_TRUE(event.ok());
  EXPECT_TRUE(device.StreamWait(device.copy_stream(), *event).ok());
  EXPECT_EQ(b.Get(), bytes) << "the copy stream has waited for the default stream";
  EXPECT_TRUE(device.Wait(*event).ok());
  const auto done = device.Done(*event);
  EXPECT_TRUE(done.ok() && *done);
  const auto later = device.Record(device.copy_stream());
  ASSERT_TRUE(later.ok());
  EXPECT_GT(*later, *event);
  EXPECT_TRUE(device.Wait(*later).ok());
  EXPECT_FALSE(device.Done(*later + 1).ok());
  EXPECT_FALSE(device.Wait(0).ok());
  EXPECT_FALSE(device.Allocate(0).ok());
  EXPECT_FALSE(device.AllocatePinned(-1).ok());
  EXPECT_FALSE(device.CopyOnDevice(b.address(), a.address(), -1, 0).ok());
  const auto free_bytes = device.FreeBytes();
  ASSERT_TRUE(free_bytes.ok());
  EXPECT_GT(*free_bytes, 0);
}

}  // namespace inferscale::kernels::transfer_cases

#endif  // INFERSCALE_TESTS_SUPPORT_TRANSFER_CASES_H_
