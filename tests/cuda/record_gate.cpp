// A gate that writes down which groups it was called for: [count] then (page, first token, head, first K element) each.
#include "cuda/storage/append.h"
#include "emu/registry.h"

namespace dfc {

struct RecordGate {
  struct Args {
    int32_t* count;
    int64_t* groups;  // [room, 4]
    int64_t room;
  };

  static DEV void filled(const Args& args, const Layout& layout, const char* cache, Offset page, Offset first,
                         Offset head) {
    if (dev::tid() != 0) return;
    const int place = dev::atomic_add(args.count, 1);
    if (place >= args.room) return;
    int64_t* group = args.groups + 4 * place;
    const Offset element = layout.byte_offset(page, head, Part::kKey, first, 0);
    dev::stg<int64_t>(group, page);
    dev::stg<int64_t>(group + 1, first);
    dev::stg<int64_t>(group + 2, head);
    dev::stg<int64_t>(group + 3, dev::ldg<uint16_t>(cache + element));
  }
};

static const emu::Registration record("close_record", emu::kernel_of<CloseGroups<RecordGate>>());

}  // namespace dfc
