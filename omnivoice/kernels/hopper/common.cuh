// What the kernels for Hopper share: numbers, barriers, TMA, wgmma. IS_BF16 and CHAINED are defined by the compiling side
// (`compiler.py`).

typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(64) TensorMap { u64 words[16]; };

constexpr int DEPTH = 64;             // columns of a tile in shared memory
constexpr int ROW_BYTES = DEPTH * 2;  // 128, a row of TMA's swizzle
constexpr int PANEL_BYTES = 64 * ROW_BYTES;
constexpr int HEAD_DIM = 128;

// ---- Numbers -------------------------------------------------------------------------------------------------------

__device__ u32 pack(float low, float high) {
  u32 packed;
#if IS_BF16
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
#else
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
#endif
  return packed;
}

__device__ float2 unpack(u32 packed) {
#if IS_BF16
  return make_float2(__uint_as_float(packed << 16), __uint_as_float(packed & 0xffff0000u));
#else
  float2 wide;
  asm("{.reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
      : "=f"(wide.x), "=f"(wide.y) : "r"(packed));
  return wide;
#endif
}

__device__ float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// Sum over the four lanes that hold a row of a fragment.
__device__ float sum_of_row(float part) {
  part += __shfl_xor_sync(0xffffffffu, part, 1);
  return part + __shfl_xor_sync(0xffffffffu, part, 2);
}

// ---- Barriers, copies, products ------------------------------------------------------------------------------------

__device__ u32 shared_address(const void* pointer) { return static_cast<u32>(__cvta_generic_to_shared(pointer)); }

__device__ void barrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals) : "memory");
}

__device__ void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}

__device__ void barrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\nbra again;\nover:\n}"
      :: "r"(barrier), "r"(parity) : "memory");
}

// Not ".release.cluster", as examples of rings have it: that is a fence for all memory, a thousand cycles long.
__device__ void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}

__device__ void load_box(u32 target, const TensorMap& map, int x, int y, u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
      :: "r"(target), "l"(&map), "r"(barrier), "r"(x), "r"(y) : "memory");
}

__device__ void store_box(const TensorMap& map, int x, int y, u32 source) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];"
               :: "l"(&map), "r"(source), "r"(x), "r"(y) : "memory");
}

__device__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ void wait_until_stores_are_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ void wait_until_stores_are_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
__device__ void show_to_tma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ void sync_warpgroup(int index) { asm volatile("bar.sync %0, 128;" :: "r"(index + 1) : "memory"); }

__device__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ u32 rank_in_cluster() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Where an address of shared memory lies in another block of the cluster.
__device__ u32 address_in(u32 address, u32 block) {
  u32 there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
  return there;
}

// Write 16 bytes to another block, and count them at its barrier.
__device__ void send(u32 target, const float* values, u32 barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
      :: "r"(target), "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3]), "r"(barrier) : "memory");
}

// One lane of a warp whose lanes are all here.
__device__ bool is_elected() {
  u32 elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
  return elected != 0;
}

// Let the next kernel's blocks be placed where this one's end.
__device__ void start_next() {
#if CHAINED
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Until then only what no kernel of a step writes may be read: weights and tables.
__device__ void wait_for_previous() {
#if CHAINED
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// A tile of rows of 128 swizzled bytes: groups of eight rows lie 1,024 bytes apart.
__device__ u64 matrix_descriptor(u32 address) {
  return static_cast<u64>((address & 0x3ffff) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

__device__ void multiply_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void multiply_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ void multiply_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
}

