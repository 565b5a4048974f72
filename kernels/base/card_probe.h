// What the card itself gives, measured now: the yardsticks beside which a kernel's speed is read, and the cost of a
// handshake between a kernel and polling host code.
#pragma once
#include <vector>

namespace assay::gpu {

// Median of five passes over more memory than the last-level cache holds, in bytes a second.
double read_bandwidth();  // a kernel that only reads
double copy_bandwidth();  // a device copy, bytes read and written counted

struct LaunchCost {
  double event_floor_us = 0.0;  // two events with nothing between them
  double launch_us = 0.0;       // host time to queue an empty kernel
  double launch_sync_us = 0.0;  // an empty kernel queued and waited for
  double node_us = 0.0;         // an empty kernel inside a graph of 300
};
LaunchCost launch_cost(int rounds);

// One sample an exchange, in microseconds.
struct Handshake {
  // The kernel stores a number to mapped memory, the host answers, the kernel sees it: its own clock, averaged over each run of
  // exchanges of one launch.
  std::vector<double> round_trip_us;
  // The same on the host's clock: from its store until it sees the kernel's answer.
  std::vector<double> host_round_trip_us;
  // A graph of `nodes` kernels, each of which rings and waits for the host: time of a graph over its nodes, less `node_us`.
  std::vector<double> layer_us;
  int nodes = 30;
  int host_calls_between_nodes =
      0;  // CUDA calls the host makes while the graph runs: none is needed
};
// A host thread answers. Every wait ends after a few seconds, on both sides; CheckError names the exchange that was lost.
Handshake handshake(int exchanges, int graphs);

}  // namespace assay::gpu
