// Lane: the numbers of a producer's batches, by which a broker recognizes one that is sent again.
//
// Laws: batches are numbered in the order in which they are first sent, and keep their numbers when they are sent
// again, so that each is stored once, however often it is sent. A new epoch begins only while no numbered batch is in
// flight.
#pragma once

#include <cstdint>
#include <memory>

#include "producer_ids.h"
#include "seal.h"

namespace linn::detail {

/// All batches of one producer: it sends to one partition, or leaves the choice to the broker (`is_scattered`).
class Lane {
 public:
  /// Take an id. Throws Error limit.exceeded.
  Lane(std::shared_ptr<ProducerIds> ids, bool is_scattered);
  /// Return the id.
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  /// Whether a new epoch has to begin before a batch of so many records.
  bool has_to_begin(std::uint32_t records) const;
  /// Begin a new epoch. Throws Error limit.exceeded if it was the last one of its id, or the id was given up, and no
  /// other id is left.
  void begin();
  /// The numbers of the next batch, which has so many records.
  ProducerNumbers number(std::uint32_t records) noexcept;
  /// Have the next batch begin a new epoch, because one before it was not confirmed.
  void end_epoch() noexcept { is_over_ = true; }

 private:
  const std::shared_ptr<ProducerIds> ids_;
  const std::uint16_t attributes_;
  Identity identity_;
  std::uint64_t next_sequence_ = 0;
  bool is_over_ = false;
};

}  // namespace linn::detail
