// Package cli is the command line of the strake binary: the root command that runs a node of the cluster, version,
// the tools beside it (lfs, lctl, bench), and the mount helper that mount(8) calls for -t strake.
//
// Words.
//
//   - node: one running process with its roles; Deps.Start starts it.
//   - tool: a subcommand that a link to the binary can also be named after, as strake lfs is lfs.
//   - usage error: the command line, the environment or the configuration file is wrong.
//
// Exit status: 0 after a clean stop, 2 for a usage error, 1 for everything else. An error that ends the process is
// exactly one line on stderr, "strake: " and what, where and what to do. The log goes to stderr too; what it holds
// below the level debug before a failed start is dropped unless stderr is a terminal, so that the line stands
// alone.
//
// Signals: the first SIGTERM, SIGINT or SIGHUP stops the node in the stop limit (10 s), a second one leaves at once.
//
// Invariant: no file of a mount that this process serves is touched here after the mount is up.
package cli
