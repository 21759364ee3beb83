// Whether a document keeps the contract: the schema, and what a schema cannot say. To add a rule of the second kind:
// one function in validate.cc and its line in validate_document.
#pragma once

#include <string>
#include <vector>

#include "harness/result/document.h"

namespace mixroof {

/// One fault of a document.
struct DocumentFault {
  std::string pointer;  // JSON pointer, "/steps/0/time_s"; empty for the document itself
  std::string what;

  std::string text() const { return (pointer.empty() ? "/" : pointer) + ": " + what; }
};

/// Empty when the document is valid.
std::vector<DocumentFault> validate_document(const Json& document);

/// JSON pointers of keys that the schema does not describe; readers ignore them.
std::vector<std::string> unknown_keys(const Json& document);
/// JSON pointers of keys that the schema describes (array items as "-", free keys as "*") and that occur nowhere in the
/// document: a test keeps the example complete with it.
std::vector<std::string> unused_schema_keys(const Json& document);

}  // namespace mixroof
