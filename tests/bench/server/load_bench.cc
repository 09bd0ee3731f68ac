// How fast a checkpoint's matrices are repacked from the page cache, by format and layout, and the memory that it takes.
//
//   load_bench [THREADS]
//
// Prints, for each: bytes of the file a second of processor time (best of five), so that what else the machine does
// matters less, beside a plain copy in the same run, and the peak of anonymous and of all resident memory over the packed
// bytes.
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "kernels/cpu/thread_pool.h"
#include "server/backend/cpu/weight_packer.h"
#include "server/model/linear_finder.h"

namespace tessera {
namespace {

constexpr int64_t kMatrices = 8;
constexpr int64_t kOut = 4096;
constexpr int64_t kIn = 4096;

struct Case {
  const char* name;
  std::vector<SafetensorsWriter::Entry> entries;
  bool by_columns = false;
  int64_t row_step = 1;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  const std::vector<int64_t> rows = {kMatrices, kOut, kIn}, columns = {kMatrices, kIn, kOut};
  cases.push_back({"BF16", {{"w", DType::kBf16, rows}}});
  cases.push_back({"BF16 by columns", {{"w", DType::kBf16, columns}}, true});
  cases.push_back({"BF16 by columns, interleaved", {{"w", DType::kBf16, columns}}, true, 2});
  cases.push_back({"BF16 interleaved", {{"w", DType::kBf16, rows}}, false, 2});
  cases.push_back({"F32", {{"w", DType::kF32, rows}}});
  cases.push_back({"NVFP4",
                   {{"w", DType::kU8, {kMatrices, kOut, kIn / 2}},
                    {"w_weight_scale", DType::kF8E4M3, {kMatrices, kOut, kIn / 16}},
                    {"w_weight_scale_2", DType::kF32, {}}}});
  cases.push_back({"NVFP4 by columns",
                   {{"w", DType::kU8, {kMatrices, kIn / 2, kOut}},
                    {"w_weight_scale", DType::kF8E4M3, {kMatrices, kIn / 16, kOut}},
                    {"w_weight_scale_2", DType::kF32, {}}},
                   true});
  cases.push_back({"MXFP4",
                   {{"w_blocks", DType::kU8, {kMatrices, kOut, kIn / 32, 16}},
                    {"w_scales", DType::kU8, {kMatrices, kOut, kIn / 32}}}});
  cases.push_back({"FP8",
                   {{"w", DType::kF8E4M3, rows},
                    {"w_weight_scale_inv", DType::kF32, {kMatrices, kOut / 128, kIn / 128}}}});
  cases.push_back({"FP8 by columns",
                   {{"w", DType::kF8E4M3, columns},
                    {"w_weight_scale_inv", DType::kF32, {kMatrices, kIn / 128, kOut / 128}}},
                   true});
  return cases;
}

// Of all threads.
double ProcessorSeconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// A line of /proc/self/status, in bytes.
int64_t StatusBytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(key + ":", 0) == 0) return std::atoll(line.c_str() + key.size() + 1) * 1024;
  }
  return 0;
}

void WriteCheckpoint(const Case& c, const std::string& path) {
  auto writer = SafetensorsWriter::Create(path, c.entries, {});
  if (!writer.ok()) {
    std::fprintf(stderr, "%s\n", std::string(writer.status().message()).c_str());
    std::exit(1);
  }
  for (const SafetensorsWriter::Entry& entry : c.entries) {
    int64_t bytes = DTypeSize(entry.dtype);
    for (const int64_t size : entry.shape) bytes *= size;
    std::vector<uint8_t> data(bytes);
    // Any byte below 0x7f is a number in every format here.
    for (int64_t i = 0; i < bytes; ++i) data[i] = static_cast<uint8_t>(i * 2654435761u >> 13) % 0x60;
    if (!(*writer)->Write(entry.name, data).ok()) std::exit(1);
  }
  if (!(*writer)->Finish().ok()) std::exit(1);
}

void Run(const Case& c, const std::string& path, int threads) {
  WriteCheckpoint(c, path);
  cpu::ThreadPool pool(threads);
  double best = 1e9, copy = 1e9;
  int64_t file_bytes = 0, packed_bytes = 0, peak_anonymous = 0, peak_resident = 0;
  for (int round = 0; round < 5; ++round) {
    auto reader = SafetensorsReader::OpenFile(path).value();
    file_bytes = reader->total_file_bytes();
    std::vector<std::string> problems;
    LinearFinder finder(*reader, &problems);
    std::vector<LinearWeights> weights;
    for (int64_t i = 0; i < kMatrices; ++i) {
      for (int64_t part = 0; part < c.row_step; ++part) {
        MatrixPlace place("w");
        place.stack = kMatrices;
        place.index = i;
        place.rows = kOut;
        place.first_row = part;
        place.row_step = c.row_step;
        place.transposed = c.by_columns;
        weights.push_back(finder.Linear(place, kOut / c.row_step, kIn, true));
      }
    }
    if (!problems.empty()) {
      std::fprintf(stderr, "%s\n", problems[0].c_str());
      std::exit(1);
    }
    const int64_t anonymous = StatusBytes("RssAnon"), resident = StatusBytes("VmRSS");
    cpu::WeightPacker packer(reader.get());
    std::vector<cpu::PackedLinear> packed(weights.size());
    for (size_t i = 0; i < weights.size(); ++i) {
      packer.Add(weights[i], cpu::WeightFormat::kBf16, weights[i].out, kIn, &packed[i]);
    }
    const double start = ProcessorSeconds();
    const auto memory = packer.Run(pool, [&](const LoadProgress&) {
      if (round > 0) return;  // looking takes time
      peak_anonymous = std::max(peak_anonymous, StatusBytes("RssAnon") - anonymous);
      peak_resident = std::max(peak_resident, StatusBytes("VmRSS") - resident);
    });
    if (!memory.ok()) {
      std::fprintf(stderr, "%s\n", std::string(memory.status().message()).c_str());
      std::exit(1);
    }
    if (round > 0) best = std::min(best, ProcessorSeconds() - start);
    packed_bytes = memory->size();

    std::vector<uint8_t> target(file_bytes);
    std::ifstream file(path, std::ios::binary);
    const double copy_start = ProcessorSeconds();
    file.read(reinterpret_cast<char*>(target.data()), file_bytes);
    copy = std::min(copy, ProcessorSeconds() - copy_start);
  }
  std::printf("%-28s %5.0f MB  %6.2f GB/s a core  (read() alone %5.2f)  peak %.2f anonymous, %.2f resident\n",
              c.name, file_bytes / 1e6, file_bytes / best / 1e9, file_bytes / copy / 1e9,
              static_cast<double>(peak_anonymous) / packed_bytes,
              static_cast<double>(peak_resident) / packed_bytes);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  std::string pattern = (std::filesystem::temp_directory_path() / "tessera_load_bench_XXXXXX").string();
  if (threads < 1 || mkdtemp(pattern.data()) == nullptr) return 1;
  for (const tessera::Case& c : tessera::Cases()) tessera::Run(c, pattern + "/m.safetensors", threads);
  std::filesystem::remove_all(pattern);
  return 0;
}
