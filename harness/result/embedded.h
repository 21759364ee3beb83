// Data files that are compiled in (embedded.cc is generated from results/ when configuring).
#pragma once

#include <string_view>

namespace mixroof {

std::string_view result_schema_text();  // results/schema/result-1.0.schema.json
std::string_view hardware_text();       // results/hardware.json

}  // namespace mixroof
