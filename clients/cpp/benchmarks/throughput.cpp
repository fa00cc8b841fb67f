// Publish records, then read them, and print how many a second, and the CPU time of this process for one.
//
//     ./linn-throughput URL TOPIC [RECORDS] [BYTES] [BATCH_BYTES]
//
// TOPIC is a stream that exists and is empty. Records are built one by one and read one by one.

#include <chrono>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <iostream>
#include <string>

#include <linn/linn.h>

namespace {

using Clock = std::chrono::steady_clock;

class Stopwatch {
 public:
  void report(const char* what, std::uint64_t records, std::size_t bytes) const {
    const double count = static_cast<double>(records);
    const double rate = count / std::chrono::duration<double>(Clock::now() - started_).count();
    const double cpu_ns = static_cast<double>(std::clock() - cpu_) / CLOCKS_PER_SEC * 1e9 / count;
    std::cout << what << ": " << std::llround(rate) << " records/s, "
              << std::llround(rate * static_cast<double>(bytes) / 1e6) << " MB/s, " << std::llround(cpu_ns)
              << " ns of CPU a record\n";
  }

 private:
  Clock::time_point started_ = Clock::now();
  std::clock_t cpu_ = std::clock();
};

void publish(const linn::Client& client, const std::string& topic, std::uint64_t records, std::size_t bytes,
             std::size_t batch_bytes) {
  linn::Producer producer = client.producer({.topic = topic, .batch_bytes = batch_bytes});
  const std::string value(bytes, 'x');
  const Stopwatch watch;
  for (std::uint64_t sent = 0; sent < records; ++sent) producer.add(value);
  producer.flush();
  watch.report("publish", records, bytes);
}

void consume(const linn::Client& client, const std::string& topic, std::uint64_t records, std::size_t bytes) {
  linn::Consumer consumer = client.consumer({.topic = topic, .prefetch = 65'536});
  std::uint64_t seen = 0, total = 0;
  const Stopwatch watch;
  while (seen < records) {
    const auto delivery = consumer.next_delivery();
    for (const linn::Batch& batch : delivery->batches) {
      for (const linn::RecordView record : batch) total += record.value()->size();
      seen += batch.size();
    }
  }
  watch.report("consume", seen, bytes);
  if (total != seen * bytes) throw linn::Error("batch.invalid", "other bytes were read than were published");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: linn-throughput URL TOPIC [RECORDS] [BYTES] [BATCH_BYTES]\n";
    return 2;
  }
  try {
    const linn::Client client = linn::Client::connect(argv[1]);
    const std::uint64_t records = argc > 3 ? std::stoull(argv[3]) : 2'000'000;
    const std::size_t bytes = argc > 4 ? std::stoul(argv[4]) : 128;
    const std::size_t batch_bytes = argc > 5 ? std::stoul(argv[5]) : 64 << 10;
    publish(client, argv[2], records, bytes, batch_bytes);
    consume(client, argv[2], records, bytes);
  } catch (const std::exception& error) {
    std::cerr << "linn-throughput: " << error.what() << "\n";
    return 1;
  }
}
