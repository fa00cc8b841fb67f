// Batch: records as they are sent, stored and delivered, and how they are read; BatchBuilder: how one is made.
//
// The format is that of docs/reference/batch-format.md. Nothing here does I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <linn/record.h>

namespace linn {

class Batch;

enum class Codec : std::uint8_t { none = 0, zstd = 1 };

/// Whether this build of the library can compress and decompress bodies.
bool zstd_available() noexcept;

/// The numbers of a batch, as its format names them.
struct BatchHeader {
  std::int64_t base_offset = 0;
  std::int64_t append_time_ms = 0;
  std::int64_t durable_offset = 0;
  std::int32_t leader_epoch = 0;
  std::uint32_t stamp_crc = 0;
  std::uint32_t crc = 0;
  std::uint32_t count = 0;
  std::int64_t first_timestamp_ms = 0;
  std::int64_t max_timestamp_ms = 0;
  std::int64_t producer_id = 0;
  std::uint32_t first_sequence = 0;
  std::uint16_t producer_epoch = 0;
  std::uint16_t attributes = 0;
  std::uint8_t codec = 0;
  std::uint8_t format = 0;
  std::uint16_t pair_count = 0;
  std::uint32_t body_bytes = 0;
  std::uint64_t id_high = 0;
  std::uint64_t id_low = 0;
  std::uint64_t transaction = 0;
  std::uint32_t offset_span = 0;
};

/// One record of a batch, read when asked for. Views are valid as long as any copy of the batch is.
class RecordView {
 public:
  std::optional<std::string_view> value() const noexcept;
  std::optional<std::string_view> key() const noexcept;
  std::string_view routing_key() const noexcept;
  /// Sorted by name.
  const std::vector<Label>& labels() const noexcept;
  /// Copied out, in order. Throws Error batch.malformed where a name is not UTF-8; other records are not touched by it.
  std::vector<Header> headers() const;
  Uuid id() const noexcept;
  std::int64_t timestamp_ms() const noexcept;
  std::uint8_t priority() const noexcept;
  std::uint32_t delay_ms() const noexcept;
  std::uint32_t ttl_ms() const noexcept;
  /// Of a batch that a broker has stored.
  std::int64_t offset() const noexcept;
  /// The offset of the next record, or behind the last one that the batch covers.
  std::int64_t next_offset() const noexcept;
  /// Everything, copied out. Throws as `headers`.
  Record copy() const;

 private:
  friend class Batch;
  struct Columns;
  friend struct BatchReader;
  RecordView(const Columns* columns, std::size_t index) noexcept : columns_(columns), index_(index) {}

  const Columns* columns_;
  std::size_t index_;
};

/// Records of one partition, or that will be: immutable, checked, and cheap to copy (copies share the bytes).
///
///     for (linn::RecordView record : batch) use(record.value());
class Batch {
 public:
  /// The largest batch, and the largest body when decompressed, that a broker takes unless configured.
  static constexpr std::size_t bytes_max_default = 8 << 20;

  /// Take and check a whole batch. Everything that can be wrong with it is found here, before anything is read, but
  /// for the UTF-8 of header names.
  ///
  /// A batch without a stamp (32 bytes of zeros) is taken: `stamped` tells. Throws Error batch.malformed,
  /// batch.corrupt, batch.too_large, or message.unsupported (compressed, and built without zstd).
  static Batch decode(std::string message, std::size_t bytes_max = bytes_max_default);

  const BatchHeader& header() const noexcept;
  /// The batch as it goes on a wire.
  std::string_view message() const noexcept;
  /// Whether a broker has stored it, so that it has offsets.
  bool stamped() const noexcept;
  /// Number of records, at least 1.
  std::size_t size() const noexcept;
  /// The record at an index less than `size()`.
  RecordView operator[](std::size_t index) const noexcept;
  std::int64_t first_offset() const noexcept;
  /// Behind the last one that the batch covers; where there are gaps, that may be further than behind the last record.
  std::int64_t end_offset() const noexcept;

  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = RecordView;
    using difference_type = std::ptrdiff_t;
    using pointer = void;
    using reference = RecordView;

    RecordView operator*() const noexcept { return RecordView(columns_, index_); }
    Iterator& operator++() noexcept {
      ++index_;
      return *this;
    }
    Iterator operator++(int) noexcept {
      Iterator before = *this;
      ++index_;
      return before;
    }
    bool operator==(const Iterator&) const noexcept = default;

   private:
    friend class Batch;
    Iterator(const RecordView::Columns* columns, std::size_t index) noexcept : columns_(columns), index_(index) {}
    const RecordView::Columns* columns_;
    std::size_t index_;
  };
  Iterator begin() const noexcept { return {columns_.get(), 0}; }
  Iterator end() const noexcept { return {columns_.get(), size()}; }

 private:
  explicit Batch(std::shared_ptr<const RecordView::Columns> columns) noexcept : columns_(std::move(columns)) {}
  std::shared_ptr<const RecordView::Columns> columns_;
};

/// Records by column until they are sealed as a batch. Used again after `seal`.
///
/// Equal records with equal options give equal bytes, in every client of linn.
class BatchBuilder {
 public:
  struct Options {
    /// Of the first record; the others count on from it, unless they bring ids of their own.
    Uuid base_id = {};
    /// Of records that bring none.
    std::int64_t timestamp_ms = 0;
    /// Codec::zstd throws Error message.unsupported at `seal` where the library was built without it.
    Codec codec = Codec::none;
    /// Whether keys are hashed for the broker, which chooses the partition by them where the producer does not.
    bool key_hashes = false;
  };

  static constexpr std::size_t records_max = 1 << 20;

  explicit BatchBuilder(Options options);
  BatchBuilder();
  ~BatchBuilder();
  BatchBuilder(BatchBuilder&&) noexcept;
  BatchBuilder& operator=(BatchBuilder&&) noexcept;

  /// Add a record. Throws Error message.invalid (nothing was added) where it can't be carried: text that is not UTF-8
  /// or is over a limit, labels with one name, too many records or labels in the batch.
  void add(const Record& record);
  /// The fast way, for a record that is only a value, or a value and a key.
  void add(std::string_view value, std::optional<std::string_view> key = std::nullopt);

  bool empty() const noexcept { return size() == 0; }
  std::size_t size() const noexcept;
  /// About how many bytes the batch has before it is compressed.
  std::size_t bytes() const noexcept;

  /// The batch as it goes on a wire, of at least one record. The builder is empty afterwards, also where it throws, and
  /// goes on with `options`. Throws Error batch.too_large, message.unsupported, message.invalid (routing keys and
  /// labels over 2 MiB), std::logic_error where it is empty.
  std::string seal(Options options);
  std::string seal();

 private:
  friend class Producer;
  struct Columns;

  /// The same as `seal`, but without the CRC.
  std::string build(Options options);

  std::unique_ptr<Columns> columns_;
};

/// Which partition of so many a key belongs to: murmur2, as Kafka's default partitioner and every client of linn.
std::int32_t partition_of(std::string_view key, std::int32_t partitions) noexcept;

}  // namespace linn
