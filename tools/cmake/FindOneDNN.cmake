# oneDNN as DNNL::dnnl, by header and library: the package's own configuration also asks for OpenCL's development files,
# which the CPU needs nothing of.
find_path(OneDNN_INCLUDE_DIR dnnl.hpp)
find_library(OneDNN_LIBRARY dnnl)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OneDNN REQUIRED_VARS OneDNN_LIBRARY OneDNN_INCLUDE_DIR
                                  REASON_FAILURE_MESSAGE "install libdnnl-dev or configure with -DMIXROOF_ONEDNN=OFF")
if(OneDNN_FOUND AND NOT TARGET DNNL::dnnl)
  add_library(DNNL::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${OneDNN_LIBRARY}
                                              INTERFACE_INCLUDE_DIRECTORIES ${OneDNN_INCLUDE_DIR})
endif()
mark_as_advanced(OneDNN_INCLUDE_DIR OneDNN_LIBRARY)
