// Package metrics shows a stats.Registry to Prometheus and puts the host's figures into it.
//
// Words:
//
//   - collector: what Prometheus' client library asks at each scrape. [NewCollector] walks
//     the registry at that moment; nothing is kept or cached between scrapes.
//   - host figures: CPU, memory, disks, data folders, network and load of the machine, read
//     by gopsutil once a second by a [Sampler] and registered below "host." as
//     strake_host_*. The process's own are below "process." as strake_process_*.
//
// Figures are whole numbers in the unit that ends their name: bytes, milliseconds, permille
// (of all CPUs), milli (load average times 1000).
//
// Invariant: a figure that could not be measured is not in the registry. One that was and
// no longer can be is taken out.
package metrics
