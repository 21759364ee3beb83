// Topics of `mixroof explain`: small numeric examples, computed live with the product's own code, each ending with the
// rule it shows. To add one: a file explain_<topic>.cc and its line in explain.cc.
#pragma once

#include <string>

namespace mixroof::cli {

/// Text for people, for a terminal of `width` cells (0: as wide as needed).
std::string explain_formats(int width);

}  // namespace mixroof::cli
