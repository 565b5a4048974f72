// The functions of pointwise.h that have vector code: a table for each instruction set, same bits in all. Contracts:
// pointwise.h.
#pragma once
#include <cstdint>

namespace assay::pointwise {

struct Rows {
  float (*rms_scale)(const float* x, int n, float eps);
  void (*scale_row)(const float* x, float r, const float* w, int n, float* y);
  void (*rope)(float* x, int head_dim, const float* cosine, const float* sine);
  void (*to_half)(const float* x, int n, std::uint16_t* h);
  void (*geglu)(const float* gate, const float* up, int n, float* u);
  void (*add)(const float* a, const float* b, int n, float* y);
  void (*add_scaled)(const float* a, const float* b, float scale, int n, float* y);
  void (*softcap)(float* l, int n, float cap);
};
extern const Rows kRowsPlain;
extern const Rows kRowsAvx2;    // needs AVX2, FMA and F16C
extern const Rows kRowsAvx512;  // needs AVX-512 F, BW, DQ and VL

}  // namespace assay::pointwise
