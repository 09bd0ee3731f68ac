#ifndef TESSERA_SERVER_METRICS_PROCESS_METRICS_H_
#define TESSERA_SERVER_METRICS_PROCESS_METRICS_H_

#include <vector>

#include "prometheus/metric_family.h"

namespace tessera {

// What Prometheus client libraries export of every process, under their usual names: process_cpu_seconds_total,
// process_resident_memory_bytes, process_virtual_memory_bytes, process_open_fds, process_max_fds, process_threads,
// process_start_time_seconds. Read from /proc; what can't be read is left out.
std::vector<prometheus::MetricFamily> CollectProcessMetrics();

}  // namespace tessera

#endif  // TESSERA_SERVER_METRICS_PROCESS_METRICS_H_
