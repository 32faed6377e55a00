#include <cmath>
#include <cstdio>
#include <thread>

#include "cpu/dispatch.h"
#include "fuzz/targets.h"

namespace dfc {
namespace fuzz {

namespace {

// In a thread of its own: scratch memory that threads keep from larger calls would hide accesses beyond a smaller one.
int call(const AttendParams& params, Status& status) {
  int code = kOk;
  std::thread([&] { code = attend(params, status); }).join();
  return code;
}

// Relative to the sum of |weight * v|: rounding of weights and of sums, given how long sums of logits get.
double weight_error(const AttendParams& params, double longest_logit) {
  Status status;
  const bool dot_products = std::string(chosen_kernels(status)->name) == "avx512_bf16" &&
                            params.query_dtype == Dtype::kBf16 && params.storage.dtype == Dtype::kBf16 &&
                            params.storage.layout.spec.format == TileFormat::kPaired;
  return (dot_products ? 0x1p-8 : 0.0) + 0x1p-20 * (longest_logit + 16);
}

// Half a unit in the last place is 2^-(mantissa bits + 1); twice that is allowed.
double rounding_error(Dtype dtype, double value) {
  const double unit = std::ldexp(1.0, -format_of(dtype).mantissa_bits);
  return std::fabs(value) * unit + (dtype == Dtype::kFp16 ? 0x1p-24 : 1e-33);
}

struct Place {
  Offset sequence, token, head;
};

void check_number(double got, double want, double error, const char* what, const Place& at, Offset column) {
  if (std::fabs(got - want) <= error) return;  // false for NaN
  char text[200];
  std::snprintf(text, sizeof text,
                "attend: %s of sequence %d, query row %d, head %d, column %d: %.9g instead of %.9g "
                "(+- %.3g)",
                what, static_cast<int>(at.sequence), static_cast<int>(at.token), static_cast<int>(at.head),
                static_cast<int>(column), got, want, error);
  throw Mismatch(text);
}

void check_row(const AttendCase& test, const Exact& exact, const Place& at) {
  const AttendParams& params = test.params;
  const double error = weight_error(params, exact.longest_logit);
  const char* got = test.out->row(0, at.token, at.head);
  for (Offset d = 0; d < params.storage.layout.spec.head_size_v; ++d) {
    const auto i = static_cast<size_t>(d);
    const double most = rounding_error(params.query_dtype, exact.out[i]) + error * exact.size[i];
    check_number(value_at(params.query_dtype, got, d), exact.out[i], most, "out", at, d);
  }
  if (params.lse == nullptr) return;
  const double lse = params.lse[at.head * params.total + at.token];
  if (std::isinf(exact.lse))
    expect(lse == exact.lse, "attend: LSE of a row without keys is not -inf");
  else
    check_number(lse, exact.lse, 0x1p-20 * (exact.longest_logit + 16), "LSE", at, 0);
}

void check_results(const AttendCase& test) {
  const AttendParams& params = test.params;
  const LayoutSpec& spec = params.storage.layout.spec;
  Offset sequence = 0;
  for (Offset token = 0; token < params.total; ++token) {
    while (sequence < params.batch && token >= params.cu_seqlens_q[sequence + 1]) ++sequence;
    for (Offset head = 0; head < params.num_heads; ++head) {
      Exact exact{-INFINITY, 0, std::vector<double>(static_cast<size_t>(spec.head_size_v)), {}};
      exact.size = exact.out;  // a row of no sequence: zeros
      if (sequence < params.batch) {
        std::vector<double> query;
        const char* row = test.query->row(0, token, head);
        for (Offset i = 0; i < spec.head_size; ++i) query.push_back(value_at(params.query_dtype, row, i));
        const Offset in_sequence = token - params.cu_seqlens_q[sequence];
        exact = exact_row(params, test.mask, test.numbers, test.row_of, sequence, in_sequence, head, query);
      }
      check_row(test, exact, Place{sequence, token, head});
    }
  }
}

// Gaps between rows of `out` still hold what they held.
void check_gaps(const AttendCase& test) {
  const StridedRows& out = *test.out;
  for (Offset token = 0; token < out.tokens; ++token) {
    for (Offset head = 0; head < out.heads; ++head) {
      std::memset(out.row(0, token, head), kNan, static_cast<size_t>(out.columns * item_bytes(out.dtype)));
    }
  }
  for (const char byte : out.memory.copy()) expect(static_cast<uint8_t>(byte) == kNan, "attend: wrote between rows");
}

void check_threads(AttendCase& test) {
  Status status;
  const auto out = test.out->memory.copy(), lse = test.lse.copy();
  test.params.threads = 3 - test.params.threads;
  call(test.params, status);
  expect(test.out->memory.equals(out) && test.lse.equals(lse), "attend: results depend on the number of threads");
}

}  // namespace

void fuzz_attend(Keys kind, Input& input) {
  AttendCase test(kind, input);
  const bool spoiled = input.one_in(5) && test.spoil(input);
  last_call = Call{test.kind(spoiled), test.params.total};
  const bool twice = input.one_in(4);
  const auto out = test.out->memory.copy(), lse = test.lse.copy();
  Status status;
  const int code = call(test.params, status);
  if (spoiled || test.params.storage.layout.spec.format == TileFormat::kSwizzle) {
    const int wanted = spoiled ? kInvalidValue : kUnsupported;
    expect(code == wanted && status.code == wanted && status.message[0] != '\0', "attend: not refused");
    expect(test.out->memory.equals(out) && test.lse.equals(lse), "attend: refused, and yet it wrote");
    return;
  }
  expect(code == kOk, std::string("attend refused: ") + status.message);
  if (twice) check_threads(test);
  check_results(test);
  check_gaps(test);
}

}  // namespace fuzz
}  // namespace dfc
