#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/random.h"

namespace inferscale {
namespace {

namespace fs = std::filesystem;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "inferscale-base-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TemporaryFolder() {
    std::error_code error;
    fs::permissions(path_, fs::perms::owner_all, error);
    fs::remove_all(path_, error);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

TEST(Status, SaysCodeAndMessageAndTakesContext) {
  EXPECT_TRUE(OkStatus().ok());
  EXPECT_EQ(OkStatus().ToString(), "ok");
  const Status status = DataLoss("block is short").WithContext("a.kv");
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(status.ToString(), "data_loss: a.kv: block is short");
  EXPECT_TRUE(OkStatus().WithContext("a.kv").ok());
  EXPECT_TRUE(Unavailable("x").retryable());
  EXPECT_FALSE(InvalidArgument("x").retryable());
}

TEST(ByteReader, ReadsBackWhatByteWriterWrote) {
  ByteWriter writer;
  writer.WriteU8(200);
  writer.WriteU16(0xBEEF);
  writer.WriteU32(0xDEADBEEF);
  writer.WriteU64(0x0123456789ABCDEF);
  writer.WriteI32(-5);
  writer.WriteI64(-6);
  writer.WriteF32(1.5f);
  writer.WriteString("h\xC3\xA9");
  writer.PadTo(16);
  EXPECT_EQ(writer.size() % 16, 0u);
  EXPECT_EQ(writer.bytes()[1], 0xEF);  // little-endian
  ByteReader reader(writer.bytes());
  EXPECT_EQ(reader.ReadU8(), 200);
  EXPECT_EQ(reader.ReadU16(), 0xBEEF);
  EXPECT_EQ(reader.ReadU32(), 0xDEADBEEF);
  EXPECT_EQ(reader.ReadU64(), 0x0123456789ABCDEF);
  EXPECT_EQ(reader.ReadI32(), -5);
  EXPECT_EQ(reader.ReadI64(), -6);
  EXPECT_EQ(reader.ReadF32(), 1.5f);
  EXPECT_EQ(reader.ReadString(10), "h\xC3\xA9");
  EXPECT_TRUE(reader.ok());
  EXPECT_TRUE(reader.status("x").ok());
}

TEST(ByteReader, FailsForGoodAtTheFirstReadThatDoesNotFit) {
  const std::uint8_t data[] = {1, 2, 3, 4, 5, 6};
  ByteReader reader(data);
  EXPECT_EQ(reader.ReadU64(), 0u);
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.ReadU8(), 0);
  EXPECT_EQ(reader.remaining(), 0u);
  EXPECT_EQ(reader.status("file").code(), StatusCode::kDataLoss);
}

TEST(ByteReader, RefusesHostileSizes) {
  const std::uint8_t data[] = {255, 255, 255, 255, 1, 2, 3, 4};
  EXPECT_TRUE(ByteReader(data).ReadBytes(SIZE_MAX).empty());
  ByteReader product(data);
  EXPECT_TRUE(product.ReadArray(SIZE_MAX / 2 + 2, 2).empty());
  EXPECT_FALSE(product.ok());
  ByteReader text(data);
  EXPECT_EQ(text.ReadString(SIZE_MAX), "");
  EXPECT_FALSE(text.ok());
  ByteReader count(data);
  EXPECT_TRUE(count.CanHold(8, 1));
  EXPECT_TRUE(count.CanHold(2, 4));
  EXPECT_FALSE(count.CanHold(UINT64_MAX, 8));
  EXPECT_FALSE(count.ok());
  ByteReader too_long(std::span<const std::uint8_t>(data).subspan(4));
  EXPECT_EQ(too_long.ReadString(3), "");
  EXPECT_FALSE(too_long.ok());
}

TEST(Checked, OverflowIsSeen) {
  EXPECT_EQ(CheckedMultiply(6, 7), 42u);
  EXPECT_FALSE(CheckedMultiply(SIZE_MAX, 2));
  EXPECT_EQ(CheckedAdd(6, 7), 13u);
  EXPECT_FALSE(CheckedAdd(SIZE_MAX, 1));
}

TEST(Hash, EqualsPublishedVectors) {
  EXPECT_EQ(HexEncode(Sha256("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(HexEncode(Sha256("")),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(HexEncode(HmacSha256(AsBytes("Jefe"), AsBytes("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(HmacSha256(AsBytes("Jefe"), AsBytes("what do ya "), AsBytes("want for nothing?")),
            HmacSha256(AsBytes("Jefe"), AsBytes("what do ya want for nothing?")));
  EXPECT_EQ(HexEncode(HmacSha256({}, {})),
            "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
  EXPECT_EQ(Md5Hex("abc"), "900150983cd24fb0d6963f7d28e17f72");
  EXPECT_EQ(Xxh3_64({}), 0x2D06800538D394C2u);
}

TEST(Hash, StreamsAndFilesEqualOneCall) {
  TemporaryFolder folder;
  const std::string text(3'000'001, 'x');
  Sha256Stream stream;
  stream.Update(std::string_view(text).substr(0, 1000));
  stream.Update(std::string_view(text).substr(1000));
  EXPECT_EQ(stream.Finish(), Sha256(text));
  stream.Update("abc");
  EXPECT_EQ(stream.Finish(), Sha256("abc"));
  ASSERT_TRUE(AtomicWriteFile(folder.path() / "f", text).ok());
  EXPECT_EQ(*Sha256File(folder.path() / "f"), Sha256(text));
  EXPECT_EQ(Sha256File(folder.path() / "none").status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(Sha256File(folder.path()).ok());
}

TEST(Hex, DecodesWhatItEncodesAndNothingElse) {
  EXPECT_EQ(HexEncode(*HexDecode("00fFaB")), "00ffab");
  for (const char* bad : {"0", "0g", "  ", "0x"}) EXPECT_FALSE(HexDecode(bad).ok()) << bad;
  EXPECT_TRUE(HexDecode("")->empty());
}

TEST(ConstantTimeEqual, Compares) {
  EXPECT_TRUE(ConstantTimeEqual(AsBytes("abc"), AsBytes("abc")));
  EXPECT_FALSE(ConstantTimeEqual(AsBytes("abc"), AsBytes("abd")));
  EXPECT_FALSE(ConstantTimeEqual(AsBytes("abc"), AsBytes("ab")));
  EXPECT_TRUE(ConstantTimeEqual({}, {}));
}

TEST(Random, UuidsAreVersion4AndDifferent) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = NewUuid();
    ASSERT_EQ(id.size(), 36u);
    EXPECT_EQ(id[8], '-');
    EXPECT_EQ(id[13], '-');
    EXPECT_EQ(id[14], '4');
    EXPECT_EQ(id[18], '-');
    EXPECT_NE(std::string("89ab").find(id[19]), std::string::npos);
    EXPECT_EQ(id[23], '-');
    seen.insert(id);
  }
  EXPECT_EQ(seen.size(), 1000u);
  EXPECT_EQ(RandomBytes(1000).size(), 1000u);
  EXPECT_NE(RandomBytes(32), RandomBytes(32));
}

TEST(Clock, FormatsAndParses) {
  EXPECT_EQ(FormatDate(0), "1970-01-01");
  EXPECT_EQ(FormatIso8601(1709211845123), "2024-02-29T13:04:05.123+00:00");
  EXPECT_EQ(FormatIso8601(-1000), "1969-12-31T23:59:59+00:00");
  EXPECT_EQ(*ParseDate("2024-02-29"), 1709164800000);
  for (const char* same : {"2024-02-29T13:04:05.123Z", "2024-02-29 13:04:05.1239+00:00",
                           "2024-02-29T05:04:05.123-08:00", "2024-02-29T18:34:05.123+0530",
                           "2024-02-29t15:04:05.123+02", "2024-02-29T13:04:05.123"}) {
    ASSERT_TRUE(ParseIso8601(same).ok()) << same;
    EXPECT_EQ(*ParseIso8601(same), 1709211845123) << same;
  }
  EXPECT_EQ(*ParseIso8601("2024-02-29"), 1709164800000);
  EXPECT_EQ(*ParseIso8601("2024-02-29T13:04"), 1709211840000);
  for (const TimeMs time :
       {INT64_MIN, TimeMs{-62135596800000}, TimeMs{253402300799999}, INT64_MAX}) {
    EXPECT_TRUE(ParseIso8601(FormatIso8601(time)).ok()) << time;
  }
  EXPECT_GT(NowMs(), 1700000000000);
  EXPECT_GT(SystemClock()(), 1700000000000);
}

TEST(Clock, RefusesEverythingElse) {
  for (const char* bad :
       {"", "2024", "2023-02-29", "2024-13-01", "2024-00-10", "2024-01-32", "2024-1-1",
        " 2024-01-01", "2024-01-01 ", "2024/01/01", "0000-01-01", "-024-01-01", "2024-01-0x"}) {
    EXPECT_EQ(ParseDate(bad).status().code(), StatusCode::kInvalidArgument) << bad;
    EXPECT_FALSE(ParseIso8601(bad).ok()) << bad;
  }
  for (const char* bad :
       {"2024-01-01T", "2024-01-01T24:00:00", "2024-01-01T10:60", "2024-01-01T10",
        "2024-01-01T10:00:60", "2024-01-01T10:00:00.", "2024-01-01T10:00:00+",
        "2024-01-01T10:00:00+1", "2024-01-01T10:00:00Zx",
        "2024-01-01T10:00:00+01:", "2024-01-01T10:00:00+01:60", "2024-01-01x10:00:00"}) {
    EXPECT_FALSE(ParseIso8601(bad).ok()) << bad;
  }
  EXPECT_LT(ParseDate(std::string(1 << 20, '9')).status().message().size(), 200u);
}

TEST(Files, WriteAtomicallyAndReadBack) {
  TemporaryFolder folder;
  const fs::path path = folder.path() / "a.bin";
  ASSERT_TRUE(AtomicWriteFile(path, "first").ok());
  ASSERT_TRUE(AtomicWriteFile(path, "second").ok());
  EXPECT_EQ(*ReadTextFile(path, 100), "second");
  EXPECT_EQ(ReadFile(path, 100)->size(), 6u);
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
  ASSERT_TRUE(AtomicWriteFile(path, "").ok());
  EXPECT_EQ(*ReadTextFile(path, 0), "");
}

TEST(Files, SayWhyTheyCannotBeReadOrWritten) {
  TemporaryFolder folder;
  ASSERT_TRUE(AtomicWriteFile(folder.path() / "a", "12345").ok());
  EXPECT_EQ(ReadFile(folder.path() / "a", 4).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(ReadFile(folder.path() / "b", 4).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ReadFile(folder.path(), 4).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(AtomicWriteFile(folder.path() / "no" / "a", "x").code(), StatusCode::kNotFound);
  fs::create_directory(folder.path() / "taken");
  EXPECT_EQ(AtomicWriteFile(folder.path() / "taken", "x").code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 2);
  const Status full = StatusFromErrno("cannot write", "/data/x", ENOSPC);
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(full.message().find("/data/x"), std::string::npos);
  EXPECT_NE(full.message().find("free some disk space"), std::string::npos);
  EXPECT_EQ(StatusFromErrno("cannot write", "x", EROFS).code(), StatusCode::kFailedPrecondition);
}

TEST(Files, DevicesAreNotRead) {
  EXPECT_EQ(ReadFile("/dev/zero", 100).status().code(), StatusCode::kFailedPrecondition);
}

TEST(Files, KnowTemporaryNames) {
  EXPECT_TRUE(IsTemporaryFileName("abc.kv.tmp-123-0"));
  for (const char* name : {"abc.kv", "abc.tmp-", "abc.tmp-12", "abc.tmp-1-2.kv", "", ".tmp-x-1"}) {
    EXPECT_FALSE(IsTemporaryFileName(name)) << name;
  }
}

TEST(Files, CreatePrivateFolders) {
  TemporaryFolder folder;
  const fs::path path = folder.path() / "a" / "b";
  ASSERT_TRUE(CreatePrivateFolder(path).ok());
  ASSERT_TRUE(CreatePrivateFolder(path).ok());
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  fs::permissions(path, fs::perms(0755));
  ASSERT_TRUE(CreatePrivateFolder(path).ok());
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  ASSERT_TRUE(AtomicWriteFile(folder.path() / "file", "x").ok());
  EXPECT_EQ(CreatePrivateFolder(folder.path() / "file").code(), StatusCode::kFailedPrecondition);
  EXPECT_FALSE(CreatePrivateFolder(folder.path() / "file" / "below").ok());
  EXPECT_FALSE(CreatePrivateFolder("").ok());
  EXPECT_GT(*FreeDiskBytes(folder.path() / "not" / "yet" / "there"), 0);
  EXPECT_TRUE(SyncFolder(folder.path()).ok());
}

TEST(FolderLock, HasOneHolderAndNamesIt) {
  TemporaryFolder folder;
  {
    const auto lock = FolderLock::Acquire(folder.path());
    ASSERT_TRUE(lock.ok()) << lock.status().ToString();
    const auto second = FolderLock::Acquire(folder.path());
    EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
    EXPECT_NE(second.status().message().find(std::to_string(getpid())), std::string::npos);
  }
  EXPECT_TRUE(FolderLock::Acquire(folder.path()).ok());
  EXPECT_EQ(FolderLock::Acquire(folder.path() / "none").status().code(), StatusCode::kNotFound);
}

TEST(FolderLock, IsFreeAfterItsProcessWasKilled) {
  TemporaryFolder folder;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto lock = FolderLock::Acquire(folder.path());
    const char byte = lock.ok() ? 'y' : 'n';
    if (write(ready[1], &byte, 1) != 1) _exit(1);
    pause();
    _exit(0);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'y');
  const auto taken = FolderLock::Acquire(folder.path());
  EXPECT_EQ(taken.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(taken.status().message().find(std::to_string(child)), std::string::npos);
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(FolderLock::Acquire(folder.path()).ok());
  close(ready[0]);
  close(ready[1]);
}

TEST(Log, TakesKnownLevelsOnly) {
  EXPECT_TRUE(SetUpLogging("warn").ok());
  EXPECT_EQ(spdlog::get_level(), spdlog::level::warn);
  EXPECT_EQ(SetUpLogging("loud").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(spdlog::get_level(), spdlog::level::warn);
}

}  // namespace
}  // namespace inferscale
