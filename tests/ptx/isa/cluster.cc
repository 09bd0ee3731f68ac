// Clusters: barrier.cluster, mapa, getctarank, st.async, red.async.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/ptx/isa/scalar.h"
#include "tests/ptx/machine/cluster.h"

namespace tessera::ptx {
namespace {

// ---- barrier.cluster

void ClusterArrive(Warp& w, const Instruction& i) {
  if (i.Has("aligned")) w.RequireConverged(i);
  auto& arrival = w.State<ClusterArrival>();
  if ((arrival.arrived & w.active()) != 0) {
    RaiseAt(std::countr_zero(arrival.arrived & w.active()), Rule::kBarrier,
            "barrier.cluster.arrive twice without a wait between");
  }
  ClusterBarrier& barrier = w.cluster().barrier();
  arrival.arrived |= w.active();
  ForLanes(w.active(), [&](int l) { arrival.generation[l] = barrier.generation(); });
  if (RaceDetector* races = w.cluster().races()) races->Release(barrier.known(), barrier.generation());
  barrier.Arrive(std::popcount(w.active()));
  w.cluster().NoteProgress();
}

void ClusterWait(Warp& w, const Instruction& i) {
  if (i.Has("aligned")) w.RequireConverged(i);
  auto& arrival = w.State<ClusterArrival>();
  if ((w.active() & ~arrival.arrived) != 0) {
    RaiseAt(std::countr_zero(w.active() & ~arrival.arrived), Rule::kBarrier,
            "barrier.cluster.wait without an arrive before it");
  }
  ClusterBarrier& barrier = w.cluster().barrier();
  uint64_t last = 0;
  ForLanes(w.active(), [&](int l) { last = std::max(last, arrival.generation[l]); });
  if (barrier.generation() <= last) {
    w.Wait({.ready = [&barrier, last] { return barrier.generation() > last; }, .what = "barrier.cluster"});
    return;
  }
  arrival.arrived &= ~w.active();
  w.cluster().NoteSynchronised(w);
  if (RaceDetector* races = w.cluster().races()) races->Acquire(barrier.known(), barrier.generation());
}

// ---- Addresses

// mapa{.shared::cluster}.type d, a, rank: the same place in another CTA.
template <class T>
void MapAddress(Warp& w, const Instruction& i) {
  T sa[kWarpSize], r[kWarpSize];
  uint32_t sb[kWarpSize];
  const T* a = w.Source(i.operands[1], sa);
  const uint32_t* rank = w.Source(i.operands[2], sb);
  const bool generic = !i.Has("shared::cluster");
  ForLanes(w.active(), [&](int l) {
    uint64_t address = a[l];
    if (generic && Warp::Classify(a[l], &address) != Space::kSharedCluster) {
      RaiseAt(l, Rule::kWrongSpace, Cat("mapa of ", Hex(a[l]), ", which is no shared memory"));
    }
    if (rank[l] >= w.cluster().ctas().size()) {
      RaiseAt(l, Rule::kOutOfBounds,
              Cat("mapa to CTA ", rank[l], " of a cluster of ", w.cluster().ctas().size()));
    }
    const uint64_t mapped = (address & ((1u << kSharedWindowBits) - 1)) | uint64_t{rank[l]}
                                                                              << kSharedWindowBits;
    r[l] = static_cast<T>(generic ? kSharedWindow | mapped : mapped);
  });
  w.Store(i.operands[0], r);
}

void GetCtaRank(Warp& w, const Instruction& i) {
  uint64_t scratch[kWarpSize];
  uint32_t r[kWarpSize];
  const uint64_t* a = w.Source(i.operands[1], scratch);
  ForLanes(w.active(), [&](int l) {
    uint64_t address;
    if (!i.Has("shared::cluster") && Warp::Classify(a[l], &address) != Space::kSharedCluster) {
      RaiseAt(l, Rule::kWrongSpace, Cat("getctarank of ", Hex(a[l]), ", which is no shared memory"));
    }
    r[l] = static_cast<uint32_t>((a[l] & 0xFFFFFFFF) >> kSharedWindowBits);
  });
  w.Store(i.operands[0], r);
}

// ---- Remote stores that signal an mbarrier

struct RemoteWrite {
  uint64_t address, barrier;
  uint8_t data[16];
};

// st.async{.weak}.shared::cluster.mbarrier::complete_tx::bytes{.vec}.type [a], b, [mbarrier]
// red.async.relaxed.cluster.global... .op.type [a], b, [mbarrier]
void RemoteStore(Warp& w, const Instruction& i) {
  const uint32_t each = Bytes(i.type), count = i.extra, bytes = each * count;
  const bool reduce = i.opcode == "red";
  auto writes = std::make_shared<std::vector<RemoteWrite>>();
  ForLanes(w.active(), [&](int l) {
    RemoteWrite write{w.AddressLane(i.operands[0], l), w.AddressLane(i.operands[2], l), {}};
    for (auto* address : {&write.address, &write.barrier}) {
      if (Warp::Classify(*address, address) == Space::kGlobal && *address >> 32 != 0) {
        RaiseAt(l, Rule::kWrongSpace,
                Cat(i.opcode, ".async at ", Hex(*address), ", which is no shared memory"));
      }
    }
    if (write.address % bytes != 0)
      RaiseAt(l, Rule::kMisalignedAddress,
              Cat(i.opcode, ".async of ", bytes, " bytes at ", Hex(write.address)));
    if (write.address >> kSharedWindowBits != write.barrier >> kSharedWindowBits) {
      RaiseAt(l, Rule::kMbarrier,
              Cat(i.opcode, ".async whose mbarrier is in another CTA than its destination"));
    }
    for (uint32_t k = 0; k < count; ++k) {
      const Operand& from =
          i.operands[1].kind == Operand::Kind::kVector ? i.operands[1].elements[k] : i.operands[1];
      const uint64_t value = w.SourceLane(from, l);
      std::memcpy(write.data + k * each, &value, each);
    }
    uint32_t offset;
    w.cluster().Resolve(write.address, &offset).shared();
    writes->push_back(write);
  });
  Cluster& cluster = w.cluster();
  const int writer = w.cluster_index();
  cluster.async().Post(
      w, {Cat(i.opcode, ".async of ", bytes, " bytes"), 0, [&cluster, &i, writes, bytes, reduce, writer] {
            for (const RemoteWrite& write : *writes) {
              uint32_t offset, barrier;
              SharedMemory& memory = cluster.Resolve(write.address, &offset).shared();
              if (reduce) {
                uint64_t old = 0, value = 0;
                memory.Load(offset, bytes, &old);
                std::memcpy(&value, write.data, bytes);
                const int bits = static_cast<int>(bytes) * 8;
                const auto sign = [&](uint64_t x) {
                  return static_cast<int64_t>(x << (64 - bits)) >> (64 - bits);
                };
                const bool less = IsSigned(i.type) ? sign(value) < sign(old) : value < old;
                const uint64_t result = i.Has("add")   ? old + value
                                        : i.Has("min") ? (less ? value : old)
                                        : i.Has("max") ? (less ? old : value)
                                        : i.Has("and") ? (old & value)
                                        : i.Has("or")  ? (old | value)
                                        : i.Has("xor") ? (old ^ value)
                                        : i.Has("inc") ? (old >= value ? 0 : old + 1)
                                                       : (old == 0 || old > value ? value : old - 1);
                memory.Store(offset, bytes, &result, writer);
              } else {
                memory.Store(offset, bytes, write.data, writer);
              }
              cluster.Resolve(write.barrier, &barrier).shared().At(barrier).CompleteTx(bytes);
            }
            cluster.NoteProgress();
          }});
}

absl::Status PrepareRemote(Instruction& i) {
  FindTypes(i);
  i.extra = i.Has("v2") ? 2 : i.Has("v4") ? 4 : 1;
  i.execute = RemoteStore;
  if (IsFloat(i.type) && i.opcode == "red") return NoSuchType(i);
  return NeedOperands(i, 3);
}

template <ExecuteFn kExecute>
absl::Status Simple(Instruction& i) {
  i.execute = kExecute;
  return absl::OkStatus();
}

}  // namespace

void RegisterCluster(Registry& registry) {
  registry.Add("barrier.cluster.arrive", Simple<ClusterArrive>);
  registry.Add("barrier.cluster.wait", Simple<ClusterWait>);
  registry.Add("mapa", [](Instruction& i) {
    FindTypes(i);
    i.execute = Bits(i.type) == 64 ? MapAddress<uint64_t> : MapAddress<uint32_t>;
    return NeedOperands(i, 3);
  });
  registry.Add("getctarank", [](Instruction& i) {
    i.execute = GetCtaRank;
    return NeedOperands(i, 2);
  });
  registry.Add("st.async", PrepareRemote);
  registry.Add("red.async", PrepareRemote);
}

}  // namespace tessera::ptx
