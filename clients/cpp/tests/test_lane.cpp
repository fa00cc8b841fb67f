// The numbers of a producer's batches.
#include <memory>
#include <vector>

#include "check.h"
#include "lane.h"

using linn::detail::epoch_max;
using linn::detail::Identity;
using linn::detail::ids_per_client;
using linn::detail::Lane;
using linn::detail::ProducerIds;
using linn::detail::ProducerNumbers;

namespace {

constexpr std::int64_t first_id = 512;

std::shared_ptr<ProducerIds> new_ids() { return std::make_shared<ProducerIds>(linn::detail::ProducerClaim{first_id, 7}); }

bool is(const ProducerNumbers& numbers, std::int64_t id, std::uint16_t epoch, std::uint32_t sequence) {
  return numbers.producer_id == id && numbers.epoch == epoch && numbers.first_sequence == sequence;
}

void sequences_count_records() {
  Lane lane(new_ids(), false);
  CHECK(!lane.has_to_begin(3));
  CHECK(is(lane.number(3), first_id, 0, 0));
  CHECK(is(lane.number(1), first_id, 0, 3));
  CHECK(is(lane.number(1), first_id, 0, 4));
}

void the_attributes_tell_whether_the_broker_chooses_partitions() {
  const auto ids = new_ids();
  CHECK(Lane(ids, false).number(1).attributes == 0);
  CHECK(Lane(ids, true).number(1).attributes == 4);
}

void a_new_epoch_begins_at_zero_once_the_old_one_is_over() {
  Lane lane(new_ids(), false);
  lane.number(7);
  lane.end_epoch();
  CHECK(lane.has_to_begin(1));
  lane.begin();
  CHECK(!lane.has_to_begin(1));
  CHECK(is(lane.number(2), first_id, 1, 0));
  CHECK(is(lane.number(2), first_id, 1, 2));
}

void no_sequence_passes_32_bits() {
  Lane lane(new_ids(), false);
  lane.number(0xffff'fff0);
  CHECK(!lane.has_to_begin(16) && lane.has_to_begin(17));
  CHECK(is(lane.number(16), first_id, 0, 0xffff'fff0));
  CHECK(lane.has_to_begin(1));
}

void a_lane_takes_another_id_after_its_last_epoch() {
  const auto ids = new_ids();
  Lane lane(ids, false);
  for (int epoch = 0; epoch < epoch_max; ++epoch) lane.begin();
  CHECK(is(lane.number(1), first_id, epoch_max, 0));
  lane.begin();
  CHECK(is(lane.number(1), first_id + 1, 0, 0));
}

void ids_that_were_given_up_are_not_used_again() {
  const auto ids = new_ids();
  Lane lane(ids, false), other(ids, false);
  ids->replace({4'096, 8});
  CHECK(lane.has_to_begin(1) && other.has_to_begin(1));
  lane.begin();
  CHECK(is(lane.number(1), 4'096, 0, 0));
  CHECK(!lane.has_to_begin(1));
  other.begin();
  CHECK(is(other.number(1), 4'097, 0, 0));
  ids->give_back({first_id, 3});
  CHECK(ids->take().producer_id == 4'098);
  CHECK(ids->claim().key == 8);
}

void an_id_is_used_again_with_a_greater_epoch_when_all_are_taken() {
  const auto ids = new_ids();
  std::vector<std::unique_ptr<Lane>> lanes;
  for (std::int64_t count = 0; count < ids_per_client; ++count) {
    lanes.push_back(std::make_unique<Lane>(ids, false));
    CHECK(lanes.back()->number(1).producer_id == first_id + count);
  }
  CHECK(code_of([&] { Lane(ids, false); }) == "limit.exceeded");
  lanes[3]->begin();
  lanes[3].reset();
  CHECK(is(Lane(ids, false).number(1), first_id + 3, 2, 0));
  CHECK(is(Lane(ids, false).number(1), first_id + 3, 3, 0));
}

void an_id_without_another_epoch_is_not_used_again() {
  const auto ids = new_ids();
  for (std::int64_t count = 0; count < ids_per_client; ++count) ids->take();
  ids->give_back({first_id, epoch_max});
  CHECK(code_of([&] { ids->take(); }) == "limit.exceeded");
  ids->give_back({first_id, epoch_max - 1});
  CHECK(ids->take().epoch == epoch_max);
}

}  // namespace

int main() {
  return run(
      {{"sequences count records", sequences_count_records},
       {"the attributes tell whether the broker chooses partitions",
        the_attributes_tell_whether_the_broker_chooses_partitions},
       {"a new epoch begins at zero, once the old one is over", a_new_epoch_begins_at_zero_once_the_old_one_is_over},
       {"no sequence passes 32 bits", no_sequence_passes_32_bits},
       {"a lane takes another id after its last epoch", a_lane_takes_another_id_after_its_last_epoch},
       {"ids that were given up are not used again", ids_that_were_given_up_are_not_used_again},
       {"an id is used again with a greater epoch when all are taken",
        an_id_is_used_again_with_a_greater_epoch_when_all_are_taken},
       {"an id without another epoch is not used again", an_id_without_another_epoch_is_not_used_again}});
}
