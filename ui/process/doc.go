// Package process puts together what runs in one process: the node's targets, the mounts and the dashboard.
//
// It is the one place above both halves of the program: the file system (package fs) and the servers (package server) do
// not know each other.
package process
