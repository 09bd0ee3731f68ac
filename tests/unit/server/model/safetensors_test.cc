#include "server/model/safetensors.h"

#include <sys/stat.h>

#include <cstring>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/server/model/test_files.h"

namespace tessera {
namespace {

using testing::HasSubstr;

class SafetensorsTest : public testing::Test {
 protected:
  // The error of a file with this header over `data_bytes` bytes.
  std::string ErrorOf(const std::string& header, size_t data_bytes) {
    const std::string path = directory_ / "x.safetensors";
    WriteFile(path, FileBytes(header, data_bytes));
    const absl::Status status = SafetensorsReader::OpenFile(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status.message(), HasSubstr(path));
    return std::string(status.message());
  }

  TemporaryDirectory directory_;
};

TEST_F(SafetensorsTest, ReadsWhatAnotherImplementationWrote) {
  auto reader = SafetensorsReader::OpenDirectory(GoldenDirectory("moe_nvfp4"));
  ASSERT_TRUE(reader.ok()) << reader.status();
  const TensorView* codes = (*reader)->Find("model.layers.1.mlp.experts.5.up_proj.weight");
  ASSERT_NE(codes, nullptr);
  EXPECT_EQ(codes->dtype, DType::kU8);
  EXPECT_EQ(codes->ShapeString(), "[32, 24]");
  EXPECT_EQ(codes->data.size(), 32 * 24);
  const TensorView* scale = (*reader)->Find("model.layers.1.mlp.experts.5.up_proj.weight_scale_2");
  ASSERT_NE(scale, nullptr);
  EXPECT_EQ(scale->dtype, DType::kF32);
  EXPECT_TRUE(scale->shape.empty());
  EXPECT_EQ(scale->num_elements(), 1);
  EXPECT_EQ((*reader)->Find("no such tensor"), nullptr);
  EXPECT_EQ((*reader)->metadata().at("format"), "pt");
  EXPECT_EQ((*reader)->hole_bytes(), 0);
}

TEST_F(SafetensorsTest, ReadsShards) {
  auto reader = SafetensorsReader::OpenDirectory(GoldenDirectory("bias_bf16"));
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_GT((*reader)->files().size(), 1);
  EXPECT_NE((*reader)->Find("model.norm.weight"), nullptr);
  EXPECT_NE((*reader)->Find("model.embed_tokens.weight"), nullptr);
}

TEST_F(SafetensorsTest, RefusesBadHeaders) {
  const auto tensor = [](const std::string& body) { return R"({"a":{)" + body + "}}"; };
  EXPECT_THAT(ErrorOf("", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(ErrorOf("[]", 0), HasSubstr("expected an object of tensors"));
  EXPECT_THAT(ErrorOf("3", 0), HasSubstr("found the number 3"));
  EXPECT_THAT(ErrorOf(R"({"a":3})", 0), HasSubstr("tensor \"a\": expected an object with dtype"));
  EXPECT_THAT(ErrorOf(R"({"a":)", 0), HasSubstr("not valid JSON at byte"));
  EXPECT_THAT(ErrorOf("{\"a\xff\":1}", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(ErrorOf("{} x", 0), HasSubstr("not valid JSON"));
  EXPECT_THAT(ErrorOf(tensor(R"("dtype":"BF16","shape":[2])"), 4), HasSubstr("\"data_offsets\" is missing"));
  EXPECT_THAT(ErrorOf(tensor(R"("dtype":"Q4","shape":[2],"data_offsets":[0,4])"), 4),
              HasSubstr("unknown dtype \"Q4\"; known are BOOL"));
  EXPECT_THAT(ErrorOf(tensor(R"("dtype":5,"shape":[2],"data_offsets":[0,4])"), 4), HasSubstr("\"dtype\""));
  EXPECT_THAT(ErrorOf(tensor(R"("dtype":"U8","shape":[-2],"data_offsets":[0,4])"), 4),
              HasSubstr("number -2"));
  EXPECT_THAT(ErrorOf(tensor(R"("dtype":"U8","shape":[1.5],"data_offsets":[0,4])"), 4),
              HasSubstr("number 1.5"));
  EXPECT_THAT(ErrorOf(tensor(R"("dtype":"U8","shape":[[2]],"data_offsets":[0,4])"), 4),
              HasSubstr("an array"));
  EXPECT_THAT(ErrorOf(tensor(R"("dtype":"U8","shape":{},"data_offsets":[0,4])"), 4), HasSubstr("an object"));
  EXPECT_THAT(ErrorOf(tensor(R"("dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,4])"), 4),
              HasSubstr("more than 2^63 - 1"));
  EXPECT_THAT(ErrorOf(tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0,4,8])"), 4),
              HasSubstr("more than 2"));
  EXPECT_THAT(ErrorOf(tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0])"), 4),
              HasSubstr("has 1 entries"));
  EXPECT_THAT(ErrorOf(tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0,4],"x":1)"), 4),
              HasSubstr("unknown key \"x\""));
  EXPECT_THAT(ErrorOf(tensor(R"("dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4])"), 4),
              HasSubstr("\"dtype\" stands twice"));
  EXPECT_THAT(ErrorOf(R"({"__metadata__":{"a":3}})", 0), HasSubstr("strings as metadata"));
  EXPECT_THAT(ErrorOf(std::string(100000, '['), 0), HasSubstr("x.safetensors"));
}

TEST_F(SafetensorsTest, RefusesTensorsThatDoNotFitTheFile) {
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]}})", 4),
              HasSubstr("do not lie in the file's 4 bytes"));
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[3,2]}})", 4), HasSubstr("[3, 2]"));
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,4]}})", 4),
              HasSubstr("BF16 of shape [2, 2] takes 8 bytes, data_offsets [0, 4] give 4"));
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", 4),
              HasSubstr("more than 2^63 - 1 bytes"));
  // Sizes whose product wraps around to the right number of bytes.
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"U8","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 4),
              HasSubstr("more than 2^63 - 1 bytes"));
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                      R"("b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
                      4),
              HasSubstr("tensors \"a\" [0, 3] and \"b\" [2, 4] overlap"));
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                      R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                      4),
              HasSubstr("tensor \"a\": the name stands twice"));
}

TEST_F(SafetensorsTest, NamesInMessagesAreEscapedAndCut) {
  const std::string name = "evil\\n\\u001b[31m" + std::string(5000, 'x');
  const std::string error = ErrorOf("{\"" + name + "\":3}", 0);
  EXPECT_LT(error.size(), 1000);
  for (const char c : error) EXPECT_GE(static_cast<unsigned char>(c), 0x20);
}

TEST_F(SafetensorsTest, AllowsAndCountsHolesAndEmptyTensors) {
  const std::string path = directory_ / "holes.safetensors";
  WriteFile(path, FileBytes(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},)"
                            R"("e":{"dtype":"F64","shape":[0,7],"data_offsets":[2,2]},)"
                            R"("b":{"dtype":"U8","shape":[1],"data_offsets":[5,6]}}   )",
                            10));
  auto reader = SafetensorsReader::OpenFile(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->hole_bytes(), 1 + 2 + 4);
  EXPECT_EQ((*reader)->Find("e")->num_elements(), 0);
}

TEST_F(SafetensorsTest, RefusesWhatIsNoFile) {
  EXPECT_EQ(SafetensorsReader::OpenFile(directory_ / "absent").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(SafetensorsReader::OpenFile(directory_.path()).status().code(),
            absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(mkfifo((directory_ / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(SafetensorsReader::OpenFile(directory_ / "pipe").status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SafetensorsReader::OpenDirectory(directory_.path()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(SafetensorsReader::OpenDirectory(directory_ / "nowhere").status().message(),
              HasSubstr("there is no such directory"));
  std::string huge(8, '\xff');
  WriteFile(directory_ / "huge", huge + "{}");
  EXPECT_THAT(SafetensorsReader::OpenFile(directory_ / "huge").status().message(),
              HasSubstr("header length 18446744073709551615"));
}

TEST_F(SafetensorsTest, RefusesBadIndexes) {
  const auto index_error = [&](const std::string& text) {
    WriteFile(directory_ / "model.safetensors.index.json", text);
    const absl::Status status = SafetensorsReader::OpenDirectory(directory_.path()).status();
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  };
  WriteFile(directory_ / "a.safetensors",
            FileBytes(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1));
  WriteFile(directory_ / "b.safetensors",
            FileBytes(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1));
  WriteFile(directory_ / "c.safetensors",
            FileBytes(R"({"c":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1));
  EXPECT_THAT(index_error("{}"), HasSubstr("expected \"weight_map\""));
  EXPECT_THAT(index_error(R"({"weight_map":{"a":"../a.safetensors"}})"), HasSubstr("file beside the index"));
  EXPECT_THAT(index_error(R"({"weight_map":{"a":7}})"), HasSubstr("weight_map[\"a\"]"));
  EXPECT_THAT(index_error(R"({"weight_map":{"a":"d.safetensors"}})"),
              HasSubstr("d.safetensors: cannot open"));
  EXPECT_THAT(index_error(R"({"weight_map":{"x":"a.safetensors"}})"), HasSubstr("which has no such tensor"));
  EXPECT_THAT(index_error(R"({"weight_map":{"a":"c.safetensors","c":"a.safetensors"}})"),
              HasSubstr("but is in"));
  EXPECT_THAT(index_error(R"({"weight_map":{"a":"a.safetensors","b":"b.safetensors"}})"),
              HasSubstr("is also in"));
  WriteFile(directory_ / "model.safetensors.index.json",
            R"({"metadata":{},"weight_map":{"a":"a.safetensors","c":"c.safetensors"}})");
  EXPECT_TRUE(SafetensorsReader::OpenDirectory(directory_.path()).ok());
}

TEST_F(SafetensorsTest, SeesAFileChange) {
  const std::string path = directory_ / "x.safetensors";
  WriteFile(path, FileBytes(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4));
  auto reader = SafetensorsReader::OpenFile(path);
  ASSERT_TRUE(reader.ok());
  EXPECT_TRUE((*reader)->CheckUnchanged(*(*reader)->Find("a")).ok());
  std::filesystem::resize_file(path, 20);
  const absl::Status status = (*reader)->CheckUnchanged(*(*reader)->Find("a"));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("20 bytes now"));
}

TEST_F(SafetensorsTest, WriterAndReaderAgree) {
  const std::string path = directory_ / "out.safetensors";
  const std::vector<SafetensorsWriter::Entry> entries = {
      {"codes", DType::kU8, {3, 5}}, {"bf", DType::kBf16, {2, 2}}, {"scalar", DType::kF32, {}}};
  auto writer = SafetensorsWriter::Create(path, entries, {{"format", "pt"}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  EXPECT_FALSE(std::filesystem::exists(path));
  std::vector<uint8_t> codes(15);
  std::iota(codes.begin(), codes.end(), 1);
  const std::vector<uint8_t> bf = {1, 2, 3, 4, 5, 6, 7, 8};
  const float value = 2.5f;
  std::vector<uint8_t> scalar(4);
  std::memcpy(scalar.data(), &value, 4);
  EXPECT_TRUE((*writer)->Write("bf", bf).ok());
  EXPECT_THAT((*writer)->Write("bf", bf).message(), HasSubstr("written twice"));
  EXPECT_THAT((*writer)->Write("other", bf).message(), HasSubstr("not announced"));
  EXPECT_THAT((*writer)->Write("codes", bf).message(), HasSubstr("expected 15 bytes, got 8"));
  EXPECT_TRUE((*writer)->Write("scalar", scalar).ok());
  EXPECT_EQ((*writer)->Finish().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE((*writer)->Write("codes", codes).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  writer->reset();
  EXPECT_EQ(directory_.num_entries(), 1);

  auto reader = SafetensorsReader::OpenFile(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->Find("codes")->data, absl::MakeConstSpan(codes));
  EXPECT_EQ((*reader)->Find("bf")->data, absl::MakeConstSpan(bf));
  EXPECT_EQ((*reader)->Find("scalar")->data, absl::MakeConstSpan(scalar));
  EXPECT_EQ((*reader)->Find("scalar")->file_offset % 8, 0);
  EXPECT_EQ((*reader)->metadata().at("format"), "pt");
}

TEST_F(SafetensorsTest, AnUnfinishedWriterLeavesNothing) {
  {
    auto writer = SafetensorsWriter::Create(directory_ / "out.safetensors", {{"a", DType::kU8, {100}}}, {});
    ASSERT_TRUE(writer.ok());
    EXPECT_EQ(directory_.num_entries(), 1);
  }
  EXPECT_EQ(directory_.num_entries(), 0);
  EXPECT_FALSE(
      SafetensorsWriter::Create(directory_ / "o", {{"a", DType::kU8, {1}}, {"a", DType::kU8, {1}}}, {}).ok());
  EXPECT_FALSE(SafetensorsWriter::Create(directory_ / "o", {{"\xff", DType::kU8, {1}}}, {}).ok());
  EXPECT_FALSE(SafetensorsWriter::Create(directory_ / "nowhere/o", {{"a", DType::kU8, {1}}}, {}).ok());
  EXPECT_EQ(directory_.num_entries(), 0);
}

}  // namespace
}  // namespace tessera
