// A layer's products for Hopper: TMA feeds a ring of tiles in shared memory, warpgroups multiply them with wgmma, and what
// follows a product (norms, rotation, SwiGLU, residual add) happens in its registers.
//
// Row r of a product is activations[r] · weight^T. A block has a producer, one warp that waits for a free slot of the ring
// and has TMA fill it, and WARPGROUPS groups of four warps that multiply: 64 rows and COLUMNS columns of a tile each. Tiles
// lie in TMA's 128-byte swizzle on their way in and out.
//
// Where SPLIT is 2 two blocks, a cluster, multiply half of a tile's depth each, and the first adds up and finishes.
//
// Defined by the compiling side (`product.py`): KIND, ROWS, COLUMNS, STAGES, SPLIT, ROWS_FIRST, IS_FP8, and the function
// `multiply`, whose register list depends on COLUMNS.

enum { PLAIN = 0, HEADS = 1, GATED = 2, ADDED = 3 };  // what follows the product, see product.py

constexpr int SLOT_DEPTH = IS_FP8 ? 128 : 64;  // columns of operands in a row of the swizzle
constexpr int WARPGROUPS = ROWS / 64;         // that multiply
constexpr int ACTIVATION_BYTES = ROWS * ROW_BYTES;
constexpr int WEIGHT_BYTES = COLUMNS * ROW_BYTES;
constexpr int SLOT_BYTES = ACTIVATION_BYTES + WEIGHT_BYTES;
constexpr int OUT_COLUMNS = KIND == GATED ? COLUMNS / 2 : COLUMNS;
constexpr int STAGED_COLUMNS = KIND == HEADS ? HEAD_DIM : OUT_COLUMNS;
constexpr int STAGED_BYTES = KIND == PLAIN ? 0 : STAGED_COLUMNS / 64 * PANEL_BYTES;
constexpr int REGISTERS = COLUMNS / 2;        // of a thread's share of a tile
constexpr int PARTIAL_BYTES = SPLIT == 1 ? 0 : 128 * REGISTERS * 4;  // of a warpgroup, from the other block
constexpr int THREADS = 128 * (WARPGROUPS + 1);
constexpr bool IS_ALONE = REGISTERS * WARPGROUPS > 64;  // on its processor: then registers are shared out anew

// ---- Tiles ---------------------------------------------------------------------------------------------------------

// Which tiles a block works on: the same sequence for its producer and its multipliers.
struct Tiles {
  u32 across;  // along the faster axis
  u32 count;
  u32 next;

  __device__ Tiles(int num_rows, int column_tiles) {
    u32 row_tiles = (num_rows + ROWS - 1) / ROWS;
    across = ROWS_FIRST ? row_tiles : column_tiles;
    count = row_tiles * column_tiles;
    next = blockIdx.x / SPLIT;
  }

  __device__ bool take(int& row, int& column) {
    if (next >= count) return false;
    u32 fast = next % across, slow = next / across;
    row = (ROWS_FIRST ? fast : slow) * ROWS;
    column = (ROWS_FIRST ? slow : fast) * COLUMNS;
    next += gridDim.x / SPLIT;
    return true;
  }
};

// A place in the ring and which time round it is.
struct Slot {
  u32 index = 0;
  u32 parity = 0;
  __device__ void advance() {
    if (++index == STAGES) { index = 0; parity ^= 1; }
  }
};

struct Ring {
  u32 tiles, full, empty;
  __device__ u32 activations(u32 slot) const { return tiles + slot * SLOT_BYTES; }
  __device__ u32 weight(u32 slot) const { return activations(slot) + ACTIVATION_BYTES; }
  __device__ u32 is_full(u32 slot) const { return full + slot * 8; }
  __device__ u32 is_empty(u32 slot) const { return empty + slot * 8; }
};

// What follows the product may need.
struct Extras {
  float* squares;        // (parts, squares_stride): of residual rows; read, or where ADDED written
  int squares_stride;
  int parts;
  float width, eps;      // of the residual rows' norm
  const int* position;   // (rows), HEADS only, as all below
  const u32* cos;        // (positions, 64)
  const u32* sin;
  const u32* query_norm; // (128)
  const u32* key_norm;
  int num_heads, num_kv_heads;
  float query_scale;
  const float* row_scales;     // (rows), where IS_FP8: of the activations, a norm's included
  const float* column_scales;  // (columns of the product), as they are: of the weights
  float* plain;          // (rows, columns), PLAIN only
  int columns;
};

// The thread's rows of a fragment are `first` and `first` + 8, its columns 2 · (lane % 4) of every eight, and the next.
struct Place {
  u32 staged;   // where the warpgroup's results wait
  int first;    // in the warpgroup's 64 rows
  int lane;
  __device__ u32 of(int row, int eight) const {
    u32 address = staged + eight / 8 * PANEL_BYTES + row * ROW_BYTES;
    return address + (((eight % 8) ^ (row & 7)) << 4) + (lane & 3) * 4;
  }
  __device__ void put(int row, int eight, u32 value) const {
    asm volatile("st.shared.u32 [%0], %1;" :: "r"(of(row, eight)), "r"(value) : "memory");
  }
  __device__ u32 get(int row, int eight) const {
    u32 value;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(of(row, eight)) : "memory");
    return value;
  }
};

// 1 / RMS of the thread's two residual rows.
__device__ void norm_scales(const Extras& extras, int row, int num_rows, float (&scale)[2]) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    float total = 0.0f;
    int at = row + 8 * i;
    if (at < num_rows)
      for (int part = 0; part < extras.parts; part++) total += extras.squares[part * extras.squares_stride + at];
    scale[i] = rsqrtf(total / extras.width + extras.eps);
  }
}

// What e4m3 was divided by.
__device__ void scale_back(float (&total)[REGISTERS], const Extras& extras, int row, int column, int num_rows,
                           int lane) {
  float scale[2];
#pragma unroll
  for (int i = 0; i < 2; i++) scale[i] = row + 8 * i < num_rows ? extras.row_scales[row + 8 * i] : 0.0f;
#pragma unroll
  for (int eight = 0; eight < COLUMNS / 8; eight++) {
    float2 own = __ldg(reinterpret_cast<const float2*>(extras.column_scales + column + eight * 8 + lane % 4 * 2));
#pragma unroll
    for (int i = 0; i < 2; i++) {
      total[eight * 4 + i * 2] *= own.x * scale[i];
      total[eight * 4 + i * 2 + 1] *= own.y * scale[i];
    }
  }
}

// Cosines and sines of the thread's two rows, at the columns that it holds of a head's first half.
struct Angles {
  u32 cos[2][8], sin[2][8];
  __device__ void load(const Extras& extras, int row, int num_rows, int lane) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      int at = row + 8 * i;
      int first = (at < num_rows ? __ldg(extras.position + at) : 0) * (HEAD_DIM / 4) + lane % 4;
#pragma unroll
      for (int eight = 0; eight < 8; eight++) {
        cos[i][eight] = __ldg(extras.cos + first + eight * 4);
        sin[i][eight] = __ldg(extras.sin + first + eight * 4);
      }
    }
  }
};

// Add the residual rows that wait in the staging area, leave the sums there, and return their row's sum of squares.
__device__ float add_residual(const float* total, int i, const Place& place) {
  float square = 0.0f;
#pragma unroll
  for (int eight = 0; eight < COLUMNS / 8; eight++) {
    float2 before = unpack(place.get(place.first + 8 * i, eight));
    u32 added = pack(total[eight * 4 + i * 2] + before.x, total[eight * 4 + i * 2 + 1] + before.y);
    place.put(place.first + 8 * i, eight, added);
    float2 after = unpack(added);
    square += after.x * after.x + after.y * after.y;
  }
  return sum_of_row(square);
}

// SwiGLU: eight columns of the gate and eight of the up projection take turns, so a thread has both.
__device__ void gate(const float* total, const float (&scale)[2], const Place& place) {
#pragma unroll
  for (int eight = 0; eight < OUT_COLUMNS / 8; eight++) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const float* own = total + eight * 8 + i * 2;
      float low = silu(own[0] * scale[i]) * (own[4] * scale[i]), high = silu(own[1] * scale[i]) * (own[5] * scale[i]);
      place.put(place.first + 8 * i, eight, pack(low, high));
    }
  }
}

__device__ void put_scaled(const float* total, const float (&scale)[2], const Place& place) {
#pragma unroll
  for (int eight = 0; eight < STAGED_COLUMNS / 8; eight++) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const float* own = total + eight * 4 + i * 2;
      place.put(place.first + 8 * i, eight, pack(own[0] * scale[i], own[1] * scale[i]));
    }
  }
}

// Sums as they are: the four lanes of a row write whole sectors.
__device__ void write_plain(const float* total, const Extras& extras, int row, int column, int num_rows, int lane) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    float* out = extras.plain + static_cast<u64>(row + 8 * i) * extras.columns;
    if (row + 8 * i >= num_rows) continue;
#pragma unroll
    for (int eight = 0; eight < COLUMNS / 8; eight++) {
      int at = column + eight * 8 + lane % 4 * 2;
      float2 value = make_float2(total[eight * 4 + i * 2], total[eight * 4 + i * 2 + 1]);
      if (at < extras.columns) *reinterpret_cast<float2*>(out + at) = value;
    }
  }
}

// RMS-norm one head of query or key rows, and rotate it by the rows' positions.
__device__ void norm_and_rotate(const float* total, const Extras& extras, const u32* norm, float factor,
                                const Angles& angles, const float (&scale)[2], const Place& place) {
  u32 norms[16];
#pragma unroll
  for (int eight = 0; eight < 16; eight++) norms[eight] = __ldg(norm + eight * 4 + place.lane % 4);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    float square = 0.0f;
#pragma unroll
    for (int eight = 0; eight < 16; eight++) {
      float low = total[eight * 4 + i * 2], high = total[eight * 4 + i * 2 + 1];
      square += low * low + high * high;
    }
    float normed = rsqrtf(sum_of_row(square) * scale[i] * scale[i] / HEAD_DIM + extras.eps) * scale[i] * factor;
#pragma unroll
    for (int eight = 0; eight < 8; eight++) {
      float2 c = unpack(angles.cos[i][eight]), s = unpack(angles.sin[i][eight]);
      float2 wa = unpack(norms[eight]), wb = unpack(norms[eight + 8]);
      const float* a = total + eight * 4 + i * 2;
      const float* b = a + 32;
      float ax = a[0] * wa.x, ay = a[1] * wa.y, bx = b[0] * wb.x, by = b[1] * wb.y;
      place.put(place.first + 8 * i, eight, pack((ax * c.x - bx * s.x) * normed, (ay * c.y - by * s.y) * normed));
      place.put(place.first + 8 * i, eight + 8, pack((bx * c.x + ax * s.x) * normed, (by * c.y + ay * s.y) * normed));
    }
  }
}

// ---- The kernel ----------------------------------------------------------------------------------------------------

__device__ void produce(Tiles tiles, const Ring& ring, const TensorMap& activations, const TensorMap& weight,
                        int first_depth, int depth_tiles) {
  Slot slot;
  int row, column, ahead = 0;
  bool has_waited = false, leads = is_elected();
  for (; tiles.take(row, column); ahead = 0) {
    if (!has_waited) {
      // Weights are there before the previous kernel's results are.
      ahead = min(STAGES, depth_tiles);
      if (leads) {
        for (int k = 0; k < ahead; k++) {
          barrier_expect(ring.is_full(k), SLOT_BYTES);
          load_box(ring.weight(k), weight, (first_depth + k) * SLOT_DEPTH, column, ring.is_full(k));
        }
      }
      wait_for_previous();
      has_waited = true;
    }
    for (int k = 0; k < depth_tiles; k++, slot.advance()) {
      u32 at = slot.index;
      if (k >= ahead) barrier_wait(ring.is_empty(at), slot.parity ^ 1);
      if (leads) {
        if (k >= ahead) {
          barrier_expect(ring.is_full(at), SLOT_BYTES);
          load_box(ring.weight(at), weight, (first_depth + k) * SLOT_DEPTH, column, ring.is_full(at));
        }
        load_box(ring.activations(at), activations, (first_depth + k) * SLOT_DEPTH, row, ring.is_full(at));
      }
    }
  }
}

// Have what a warpgroup's threads have put into the staging area stored.
__device__ void store_staged(const TensorMap& out, int column, int row, u32 staged, int index, int thread) {
  show_to_tma();
  sync_warpgroup(index);
  if (thread == 0) {
    for (int panel = 0; panel < STAGED_COLUMNS / 64; panel++)
      store_box(out, column + panel * 64, row, staged + panel * PANEL_BYTES);
    commit_stores();
  }
}

// What a second block has multiplied: sent to the first, and added there.
__device__ void add_up(float (&total)[REGISTERS], u32 partial, u32 is_there, u32 rank, int thread) {
#pragma unroll
  for (int four = 0; four < REGISTERS; four += 4) {
    u32 address = partial + (four / 4 * 128 + thread) * 16;
    if (rank == 1) send(address_in(address, 0), total + four, address_in(is_there, 0));
  }
  if (rank == 1) return;
  barrier_wait(is_there, 0);
#pragma unroll
  for (int four = 0; four < REGISTERS; four += 4) {
    float4 other;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(other.x), "=f"(other.y), "=f"(other.z), "=f"(other.w)
                 : "r"(partial + (four / 4 * 128 + thread) * 16) : "memory");
    total[four] += other.x;
    total[four + 1] += other.y;
    total[four + 2] += other.z;
    total[four + 3] += other.w;
  }
}

__device__ void multiply_tiles(Tiles tiles, const Ring& ring, u32 staged, u32 residual_is_there, u32 partial,
                               u32 partial_is_there, u32 rank, const TensorMap& out, const Extras& extras, int num_rows,
                               int depth_tiles, int index) {
  int thread = threadIdx.x % 128;
  Place place = {staged, thread / 32 * 16 + thread % 32 / 4, thread % 32};
  Slot slot;
  u32 residual_parity = 0;
  int row, column;
  wait_for_previous();
  for (; tiles.take(row, column); residual_parity ^= 1) {
    int first = row + index * 64;
    if (SPLIT == 2 && rank == 0 && thread == 0) barrier_expect(partial_is_there, PARTIAL_BYTES);
    if (KIND == ADDED && rank == 0 && thread == 0) {
      wait_until_stores_are_read();
      barrier_expect(residual_is_there, STAGED_BYTES);
      for (int panel = 0; panel < STAGED_COLUMNS / 64; panel++)
        load_box(staged + panel * PANEL_BYTES, out, column + panel * 64, first, residual_is_there);
    }

    float total[REGISTERS];
    u32 previous = 0;
    for (int k = 0; k < depth_tiles; k++, slot.advance()) {
      barrier_wait(ring.is_full(slot.index), slot.parity);
      u64 a = matrix_descriptor(ring.activations(slot.index) + index * 64 * ROW_BYTES);
      u64 b = matrix_descriptor(ring.weight(slot.index));
      multiply_begin();
#pragma unroll
      for (int part = 0; part < ROW_BYTES / 32; part++) multiply(total, a + 2 * part, b + 2 * part, k != 0 || part != 0);
      multiply_commit();
      multiply_wait<1>();
      if (k > 0 && thread == 0) barrier_arrive(ring.is_empty(previous));
      previous = slot.index;
    }
    // While the last of it runs:
    float scale[2] = {1.0f, 1.0f};
    Angles angles;
    if (!IS_FP8 && (KIND == HEADS || KIND == GATED)) norm_scales(extras, first + place.first, num_rows, scale);
    if (KIND == HEADS) angles.load(extras, first + place.first, num_rows, place.lane);
    multiply_wait<0>();
    if (thread == 0) barrier_arrive(ring.is_empty(previous));
    if (SPLIT == 2) {
      add_up(total, partial, partial_is_there, rank, thread);
      if (rank == 1) continue;  // and ends: blocks that split take one tile
    }
    if (IS_FP8) scale_back(total, extras, first + place.first, column, num_rows, place.lane);

    if (KIND == PLAIN) {
      write_plain(total, extras, first + place.first, column, num_rows, place.lane);
    } else if (KIND == ADDED) {
      barrier_wait(residual_is_there, residual_parity);
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float square = add_residual(total, i, place);
        int at = first + place.first + 8 * i;
        if (place.lane % 4 == 0 && at < num_rows) extras.squares[column / COLUMNS * extras.squares_stride + at] = square;
      }
      store_staged(out, column, first, staged, index, thread);
    } else {
#pragma unroll
      for (int part = 0; part < OUT_COLUMNS / STAGED_COLUMNS; part++) {
        if (thread == 0) wait_until_stores_are_read();
        sync_warpgroup(index);
        const float* own = total + part * REGISTERS / (OUT_COLUMNS / STAGED_COLUMNS);
        int out_column = (KIND == GATED ? column / 2 : column) + part * STAGED_COLUMNS;
        int head = out_column / HEAD_DIM;
        if (KIND == GATED) {
          gate(own, scale, place);
        } else if (head < extras.num_heads) {
          norm_and_rotate(own, extras, extras.query_norm, extras.query_scale, angles, scale, place);
        } else if (head < extras.num_heads + extras.num_kv_heads) {
          norm_and_rotate(own, extras, extras.key_norm, 1.0f, angles, scale, place);
        } else {
          put_scaled(own, scale, place);
        }
        store_staged(out, out_column, first, staged, index, thread);
      }
    }
  }
  if (thread == 0) wait_until_stores_are_done();
}

extern "C" __global__ void __launch_bounds__(THREADS, IS_ALONE ? 1 : 2)
product(const __grid_constant__ TensorMap activations, const __grid_constant__ TensorMap weight,
        const __grid_constant__ TensorMap out, const int* num_rows_at, int column_tiles, int depth_tiles,
        const __grid_constant__ Extras extras) {
  extern __shared__ char memory[];
  u32 base = (shared_address(memory) + 1023) & ~1023u;
  u32 staging = base + STAGES * SLOT_BYTES;
  u32 partial = staging + WARPGROUPS * STAGED_BYTES;
  u32 barriers = partial + WARPGROUPS * PARTIAL_BYTES;
  Ring ring = {base, barriers, barriers + STAGES * 8};
  u32 residual_is_there = barriers + 2 * STAGES * 8;
  u32 partial_is_there = residual_is_there + WARPGROUPS * 8;

  if (threadIdx.x == 0) {
    for (int slot = 0; slot < STAGES; slot++) {
      barrier_init(ring.is_full(slot), 1);
      barrier_init(ring.is_empty(slot), WARPGROUPS);
    }
    for (int index = 0; index < 2 * WARPGROUPS; index++) barrier_init(residual_is_there + index * 8, 1);
    show_to_tma();
  }
  if (SPLIT == 1) __syncthreads();
  else sync_cluster();
  start_next();

  u32 rank = SPLIT == 1 ? 0 : rank_in_cluster();
  depth_tiles /= SPLIT;
  int num_rows = *num_rows_at;
  Tiles tiles(num_rows, column_tiles);
  int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);  // the compiler then knows that it is one for all lanes
  if (warp >= WARPGROUPS * 4) {
    if (IS_ALONE) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (warp == WARPGROUPS * 4) produce(tiles, ring, activations, weight, rank * depth_tiles, depth_tiles);
  } else {
    if (IS_ALONE) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    int index = warp / 4;
    multiply_tiles(tiles, ring, staging + index * STAGED_BYTES, residual_is_there + index * 8,
                   partial + index * PARTIAL_BYTES, partial_is_there + index * 8, rank, out, extras, num_rows, depth_tiles,
                   index);
  }
}
