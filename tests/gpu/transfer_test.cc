#include <gtest/gtest.h>

#include "kernels/device.h"
#include "support/transfer_cases.h"

namespace inferscale::kernels {
namespace {

class CudaTransfer : public testing::Test {
 protected:
  void SetUp() override {
    auto device = MakeCudaDevice(0);
    if (!device.ok()) GTEST_SKIP() << device.status().ToString();
    device_ = std::move(device).value();
  }
  std::unique_ptr<Device> device_;
};

TEST_F(CudaTransfer, GivesTheBitsOfTheCpuKernels) {
  for (std::uint64_t number = 0; number < transfer_cases::Cases(720); ++number) {
    transfer_cases::ExpectSameAsCpu(*device_, number);
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaTransfer, CopiesTheArgumentsOfManyCalls) {
  transfer_cases::ExpectManyCallsInFlight(*device_);
}

TEST_F(CudaTransfer, RefusesWrongArguments) { transfer_cases::ExpectRefusals(*device_); }

TEST_F(CudaTransfer, CopiesAndRecords) { transfer_cases::ExpectDeviceWorks(*device_); }

}  // namespace
}  // namespace inferscale::kernels
