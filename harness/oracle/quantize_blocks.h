// The part of group quantize with scales by blocks: blocks of a row, and MXFP8.
#pragma once

#include <vector>

#include "harness/numeric/format.h"
#include "harness/oracle/entry.h"

namespace mixroof {

class OracleSession;

inline constexpr const char* kQuantizeGroup = "quantize";

/// Values of stored codes. An operand of codes holds values; the kernel's scale is apart.
std::vector<double> decoded_codes(Format format, const std::vector<double>& codes);

/// Codes and scales of blocks along rows; `entry` is block_1x128: rows, columns, block.
void check_block_scales(OracleSession& session, const OracleFile& file, const OracleEntry& entry);
/// Codes and E8M0 scales by both roundings; `entry` is mxfp8: rows, columns, block.
void check_microscaling(OracleSession& session, const OracleFile& file, const OracleEntry& entry);

}  // namespace mixroof
