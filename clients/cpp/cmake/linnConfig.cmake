include(CMakeFindDependencyMacro)
find_dependency(Threads)
find_dependency(CapnProto)
include(${CMAKE_CURRENT_LIST_DIR}/linnTargets.cmake)
