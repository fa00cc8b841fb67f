#include <linn/frame.h>

#include <capnp/dynamic.h>

#include "control_message.h"

namespace linn {
namespace {

using capnp::DynamicStruct;
using capnp::DynamicValue;

FieldValue::Fields read_fields(DynamicStruct::Reader source);

FieldValue read_value(DynamicValue::Reader value) {
  switch (value.getType()) {
    case DynamicValue::BOOL: return {value.as<bool>()};
    case DynamicValue::INT: return {value.as<std::int64_t>()};
    case DynamicValue::UINT: return {value.as<std::uint64_t>()};
    case DynamicValue::ENUM: return {std::uint64_t{value.as<capnp::DynamicEnum>().getRaw()}};
    case DynamicValue::TEXT: return {detail::read_text(value.as<capnp::Text>())};
    case DynamicValue::STRUCT: return {read_fields(value.as<DynamicStruct>())};
    case DynamicValue::LIST: {
      FieldValue::List entries;
      for (const auto entry : detail::checked_list(value.as<capnp::DynamicList>()))
        entries.push_back(read_value(entry));
      return {std::move(entries)};
    }
    default: detail::malformed_frame("a field has a type that the protocol has not");
  }
}

FieldValue::Fields read_fields(DynamicStruct::Reader source) {
  FieldValue::Fields fields;
  for (const auto field : source.getSchema().getFields())
    fields.emplace_back(field.getProto().getName().cStr(), read_value(source.get(field)));
  return fields;
}

}  // namespace

FrameContent read_frame(std::string_view message) {
  try {
    detail::ControlMessage control(message);
    const auto root = control.root();
    FrameContent content{root.getCorrelation(), root.getBatches(), "unknown", {}};
    const DynamicStruct::Reader frame = root;
    KJ_IF_MAYBE (member, frame.which()) {
      content.member = member->getProto().getName().cStr();
      const auto value = frame.get(*member);
      if (value.getType() == DynamicValue::STRUCT) content.fields = read_fields(value.as<DynamicStruct>());
    }
    return content;
  } catch (const kj::Exception&) {
    detail::malformed_frame("a control message can't be read");
  }
}

}  // namespace linn
