// Full attention inside each packed sequence, for Hopper: queries and keys come normed, rotated and scaled.
//
// A block takes an item, which is up to 64 positions of one sequence, and a pair of query heads that share a key head: a
// warpgroup a head. Keys and values arrive by TMA, 64 at a time, two ahead; scores stay in registers, and weights go from
// there straight into the product with the values.
//
// Defined by the compiling side (`attention.py`): NUM_HEADS, `multiply_keys` and `multiply_values`.

constexpr int KEYS = 64;  // at a time
constexpr int QUERIES = 64;
#define INFINITE __int_as_float(0x7f800000)
constexpr int TILE_BYTES = 2 * PANEL_BYTES;  // 64 rows of a head, as two panels of 64 columns
constexpr int QUERY_WIDTH = NUM_HEADS * HEAD_DIM;
constexpr int KEY_WIDTH = QUERY_WIDTH / 2;

__device__ void load_tile(u32 target, const TensorMap& map, int column, int row, u32 barrier) {
  load_box(target, map, column, row, barrier);
  load_box(target + PANEL_BYTES, map, column + 64, row, barrier);
}

// Values lie as they are wanted transposed: panels of 64 columns follow each other, groups of eight rows do within a panel.
__device__ u64 values_descriptor(u32 address) {
  return static_cast<u64>((address & 0x3ffff) >> 4) | (static_cast<u64>(PANEL_BYTES >> 4) << 16) | (64ull << 32) | (1ull << 62);
}

__device__ u32 swizzled(u32 tile, int row, int eight) {
  return tile + eight / 8 * PANEL_BYTES + row * ROW_BYTES + ((eight % 8 ^ row & 7) << 4);
}

__device__ float max_of_row(float part) {
  part = fmaxf(part, __shfl_xor_sync(0xffffffffu, part, 1));
  return fmaxf(part, __shfl_xor_sync(0xffffffffu, part, 2));
}

__device__ float power_of_two(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// A weight of zero does not help against values that are not finite, which other sequences may hold.
__device__ void zero_rows(u32 values, int first) {
  for (int index = threadIdx.x; index < (KEYS - first) * 16; index += 256) {
    u32 address = swizzled(values, first + index / 16, index % 16);
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" :: "r"(address), "r"(0) : "memory");
  }
  show_to_tma();
}

extern "C" __global__ void __launch_bounds__(256, 2)
attention(const __grid_constant__ TensorMap qkv, uint4* out, const int* items, const int* num_items_at) {
  extern __shared__ char memory[];
  u32 queries = (shared_address(memory) + 1023) & ~1023u;
  u32 keys = queries + 2 * TILE_BYTES;
  u32 values = keys + 2 * TILE_BYTES;
  u32 queries_are_there = values + 2 * TILE_BYTES;
  u32 keys_are_there = queries_are_there + 8, values_are_there = keys_are_there + 16;
  start_next();
  int item = blockIdx.y, pair = blockIdx.x;
  if (item >= *num_items_at) {
    wait_for_previous();  // whoever waits for this kernel waits for all before it
    return;
  }
  int start = items[item * 3], length = items[item * 3 + 1], offset = items[item * 3 + 2];
  int chunks = (length + KEYS - 1) / KEYS;
  int key_column = QUERY_WIDTH + pair * HEAD_DIM, value_column = key_column + KEY_WIDTH;

  if (threadIdx.x == 0) {
    for (int index = 0; index < 5; index++) barrier_init(queries_are_there + index * 8, 1);
    show_to_tma();
  }
  __syncthreads();
  wait_for_previous();
  auto load_chunk = [&](int chunk) {
    int stage = chunk & 1, row = start + chunk * KEYS;
    barrier_expect(keys_are_there + stage * 8, TILE_BYTES);
    load_tile(keys + stage * TILE_BYTES, qkv, key_column, row, keys_are_there + stage * 8);
    barrier_expect(values_are_there + stage * 8, TILE_BYTES);
    load_tile(values + stage * TILE_BYTES, qkv, value_column, row, values_are_there + stage * 8);
  };
  if (threadIdx.x == 0) {
    barrier_expect(queries_are_there, 2 * TILE_BYTES);
    for (int head = 0; head < 2; head++)
      load_tile(queries + head * TILE_BYTES, qkv, (2 * pair + head) * HEAD_DIM, start + offset, queries_are_there);
    load_chunk(0);
    if (chunks > 1) load_chunk(1);
  }

  int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  int thread = threadIdx.x % 128, lane = thread % 32;
  u32 own = queries + warpgroup * TILE_BYTES;
  float mixed[64], highest[2] = {-INFINITE, -INFINITE}, sum[2] = {0.0f, 0.0f};
  barrier_wait(queries_are_there, 0);
  for (int chunk = 0; chunk < chunks; chunk++) {
    int stage = chunk & 1;
    u32 parity = chunk / 2 & 1;
    int left = length - chunk * KEYS;
    float scores[32];
    barrier_wait(keys_are_there + stage * 8, parity);
    multiply_begin();
#pragma unroll
    for (int part = 0; part < HEAD_DIM / 16; part++) {
      u32 at = part / 4 * PANEL_BYTES + part % 4 * 32;
      multiply_keys(scores, matrix_descriptor(own + at), matrix_descriptor(keys + stage * TILE_BYTES + at), part != 0);
    }
    multiply_commit();
    multiply_wait<0>();

    u32 weights[16];
    float shrink[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float top = highest[i];
#pragma unroll
      for (int eight = 0; eight < 8; eight++) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
          float& score = scores[eight * 4 + i * 2 + j];
          if (eight * 8 + lane % 4 * 2 + j >= left) score = -INFINITE;
          top = fmaxf(top, score);
        }
      }
      top = max_of_row(top);
      shrink[i] = power_of_two(highest[i] - top);
      highest[i] = top;
      float part = 0.0f;
#pragma unroll
      for (int eight = 0; eight < 8; eight++) {
        float low = power_of_two(scores[eight * 4 + i * 2] - top), high = power_of_two(scores[eight * 4 + i * 2 + 1] - top);
        part += low + high;
        weights[eight * 2 + i] = pack(low, high);
      }
      sum[i] = sum[i] * shrink[i] + part;
    }
    if (chunk > 0) {
#pragma unroll
      for (int index = 0; index < 64; index++) mixed[index] *= shrink[index / 2 % 2];
    }
    barrier_wait(values_are_there + stage * 8, parity);
    if (left < KEYS) {
      zero_rows(values + stage * TILE_BYTES, left);
      __syncthreads();
    }
    multiply_begin();
#pragma unroll
    for (int part = 0; part < KEYS / 16; part++)
      multiply_values(mixed, weights + part * 4, values_descriptor(values + stage * TILE_BYTES + part * 16 * ROW_BYTES),
                      chunk != 0 || part != 0);
    multiply_commit();
    multiply_wait<0>();
    if (chunk + 2 < chunks) {
      __syncthreads();
      if (threadIdx.x == 0) load_chunk(chunk + 2);
    }
  }

  // Rows beyond the sequence are the next one's: no box is stored, but row by row, from where the queries were.
#pragma unroll
  for (int i = 0; i < 2; i++) {
    float scale = 1.0f / sum_of_row(sum[i]);
    int row = thread / 32 * 16 + lane / 4 + 8 * i;
#pragma unroll
    for (int eight = 0; eight < 16; eight++) {
      u32 value = pack(mixed[eight * 4 + i * 2] * scale, mixed[eight * 4 + i * 2 + 1] * scale);
      asm volatile("st.shared.u32 [%0], %1;" :: "r"(swizzled(own, row, eight) + lane % 4 * 4), "r"(value) : "memory");
    }
  }
  sync_warpgroup(warpgroup);
  for (int index = thread; index < QUERIES * 16; index += 128) {
    int row = index / 16, eight = index % 16;
    if (offset + row >= length) break;
    uint4 value;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w) : "r"(swizzled(own, row, eight)) : "memory");
    out[static_cast<u64>(start + offset + row) * (QUERY_WIDTH / 8) + (2 * pair + warpgroup) * (HEAD_DIM / 8) + eight] = value;
  }
}
