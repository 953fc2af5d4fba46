// Package config is the configuration of one strake process: what the flags, the STRAKE_* environment and the
// configuration file say, put together, checked, and turned into a plain struct that the rest of the process
// takes as it is.
//
// Words.
//
//   - key: a name from Keys. It is the same word as a flag (--mgs-timeout), in the file (mgs-timeout: 30s) and in
//     the environment (STRAKE_MGS_TIMEOUT).
//   - Setting: the values one source gave to one key, and where they came from, for the messages.
//   - role: MDS, OSS or client (Lustre manual, "Lustre Components"); the role all is every one of them in one
//     process that speaks its protocol over an in-process pipe.
//   - target: one MDT or OST, which is one data folder.
//
// Flags win over the environment, the environment over the file, whole keys at a time: a --data on the command
// line replaces the file's list and does not add to it.
//
// Invariant: a Config that New returned is complete. Every default is filled in, every address has a host or is
// meant for all interfaces, and has a port; every folder is lexically clean.
//
// Invariant: nothing here touches the disk or the network but ReadFile, which reads the one file it is told.
package config
