// Documents on disk: what the file system refuses, and that a failed write leaves the old document.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>

#include "harness/atomic_file.h"
#include "harness/result/read.h"
#include "harness/result/write.h"

namespace mixroof {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class ResultFile : public testing::Test {
 protected:
  ResultFile() {
    std::string pattern = (fs::temp_directory_path() / "mixroof_result_XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    fs::permissions(folder_, fs::perms::all);
  }
  ~ResultFile() override {
    fs::permissions(folder_, fs::perms::all);
    fs::remove_all(folder_);
  }

  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder_)) found.push_back(entry.path().filename().string());
    return found;
  }

  fs::path folder_;
};

/// Permissions mean nothing to root: gives them up while it lives.
class WithoutRoot {
 public:
  WithoutRoot() {
    constexpr uid_t kNobody = 65534;
    if (before_ == 0) {
      EXPECT_EQ(::seteuid(kNobody), 0);
    }
  }
  ~WithoutRoot() { EXPECT_EQ(::seteuid(before_), 0); }

 private:
  const uid_t before_ = ::geteuid();
};

template <typename Exception = UsageError>
std::string failure(auto&& call) {
  try {
    call();
  } catch (const Exception& error) {
    return error.what();
  }
  return "no error";
}

const Json kOld = {{"schema", "mixroof/result/1.0"}, {"value", "old"}};
const Json kNew = {{"schema", "mixroof/result/1.0"}, {"value", "new"}};

TEST_F(ResultFile, JSN2_WriteThenReadIsEqual_AlsoWithSpacesAndUmlauts) {
  const fs::path path = folder_ / "dir with space" / "\xC3\xBC.json";
  fs::create_directory(path.parent_path());
  test_writable(path);
  write_document(path, kOld);
  EXPECT_EQ(read_document(path), kOld);
  write_document(path, kNew);
  EXPECT_EQ(read_document(path), kNew);
}

TEST_F(ResultFile, LeavesNoTemporaryFileAndAnOrdinaryMode) {
  const fs::path path = folder_ / "r.json";
  test_writable(path);
  EXPECT_THAT(names(), testing::IsEmpty());
  write_document(path, kOld);
  EXPECT_THAT(names(), testing::ElementsAre("r.json"));
  const mode_t mask = ::umask(0);
  ::umask(mask);
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0666u & ~mask);
}

TEST_F(ResultFile, KeepsTheModeOfTheFileItReplacesAndFollowsLinks) {
  const fs::path file = folder_ / "r.json", link = folder_ / "link.json";
  write_document(file, kOld);
  ASSERT_EQ(::chmod(file.c_str(), 0640), 0);
  fs::create_symlink("r.json", link);
  test_writable(link);
  write_document(link, kNew);
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(read_document(file), kNew);
  struct stat status {};
  ASSERT_EQ(::stat(file.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0640u);
}

TEST_F(ResultFile, ENV2_MissingDirectoryIsRefusedBeforeMeasuring) {
  const std::string message = failure([&] { test_writable(folder_ / "missing" / "r.json"); });
  EXPECT_THAT(message, HasSubstr((folder_ / "missing").string()));
  EXPECT_THAT(message, HasSubstr("mkdir -p"));
}

TEST_F(ResultFile, ENV2_DirectoryIsRefused) {
  EXPECT_THAT(failure([&] { test_writable(folder_); }), HasSubstr("is a directory"));
  EXPECT_THAT(failure([&] { test_writable(""); }), HasSubstr("empty"));
}

TEST_F(ResultFile, ENV2_FileAsDirectoryIsRefused) {
  write_document(folder_ / "r.json", kOld);
  EXPECT_THAT(failure([&] { test_writable(folder_ / "r.json" / "x.json"); }), HasSubstr("Not a directory"));
}

TEST_F(ResultFile, ENV2_ReadOnlyDirectoryIsRefused) {
  fs::permissions(folder_,
                  fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_read | fs::perms::others_exec);
  const WithoutRoot ordinary_user;
  const std::string message = failure([&] { test_writable(folder_ / "r.json"); });
  EXPECT_THAT(message, HasSubstr("Permission denied"));
  EXPECT_THAT(message, HasSubstr(folder_.string()));
}

TEST_F(ResultFile, ENV2_FileWithoutWritePermissionIsRefusedAndStays) {
  const fs::path path = folder_ / "r.json";
  write_document(path, kOld);
  fs::permissions(path, fs::perms::owner_read | fs::perms::others_read);
  {
    const WithoutRoot ordinary_user;
    EXPECT_THAT(failure([&] { test_writable(path); }), HasSubstr("Permission denied"));
  }
  EXPECT_EQ(read_document(path), kOld);
}

TEST_F(ResultFile, ENV2_NameOf300CharactersIsRefused_OneOf255IsFine) {
  EXPECT_THAT(failure([&] { test_writable(folder_ / (std::string(295, 'n') + ".json")); }),
              HasSubstr("File name too long"));
  const fs::path longest = folder_ / (std::string(250, 'n') + ".json");
  test_writable(longest);
  write_document(longest, kOld);
  EXPECT_EQ(read_document(longest), kOld);
}

TEST_F(ResultFile, ENV2_FullDeviceReportsTheSystemsReason) {
  test_writable("/dev/full");
  checkpoint_document("/dev/full", kOld);  // devices take the final document only
  EXPECT_THAT(failure<Error>([] { write_document("/dev/full", kOld); }),
              HasSubstr("cannot write /dev/full: No space left on device"));
}

TEST_F(ResultFile, ENV2_AFailedWriteLeavesTheOldDocumentAndNothingElse) {
  const fs::path path = folder_ / "r.json";
  write_document(path, kOld);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit tiny{8, before.rlim_max};  // bytes a file may grow to: the write stops in the middle
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tiny), 0);
  const std::string message = failure<Error>([&] { write_document(path, kNew); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_THAT(message, HasSubstr("File too large"));
  EXPECT_EQ(read_document(path), kOld);
  EXPECT_THAT(names(), testing::ElementsAre("r.json"));
}

TEST_F(ResultFile, ReadingNamesTheFileAndTheReason) {
  EXPECT_THAT(failure([&] { read_document(folder_ / "none.json"); }), HasSubstr("none.json: No such file"));
  EXPECT_THAT(failure([&] { read_document(folder_); }), HasSubstr("is a directory"));
  std::ofstream(folder_ / "cut.json") << "{\"schema\":";
  EXPECT_THAT(failure([&] { read_document(folder_ / "cut.json"); }), HasSubstr("cut.json: line 1, column 11"));
}

// Process ids repeat, in containers at every start: names that a killed run left do not stand in the way.
TEST_F(ResultFile, NamesLeftByAKilledProcessOfThisId_DoNotStandInTheWay) {
  for (int number = 0; number < 500; ++number)
    std::ofstream(folder_ / fmt::format(".mixroof-{}-{}.tmp", ::getpid(), number)) << "x";
  AtomicFile file(folder_ / "result.json");
  ASSERT_TRUE(file.is_open());
  file.write("y");
  file.commit();
  EXPECT_EQ(fs::file_size(folder_ / "result.json"), 1u);
}

}  // namespace
}  // namespace mixroof
