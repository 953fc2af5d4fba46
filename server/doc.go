// Package server builds, starts and stops the targets of one process.
//
// Words: a node is a process with its listeners, its targets and its link to the MGS. Its network is an in-process pipe,
// which its own parts use, and TCP.
//
// Order of start: ports (so that a port in use changes nothing on disk), the MDT's device and the MGS on it where the MGS
// lives here, the MGS's configuration, then every other data folder, registration, serving. Order of stop: the MDT, its
// links to the OSTs, the OSTs, the MGS, the connections, the devices. Nothing on disk is made before it is known that the
// process can serve.
//
// Lock order: Node.mu alone, never held across a request.
package server
