// Package fs mounts a strake file system: it composes the configuration client, one metadata import per MDT, one data
// import per OST, the client's state and the kernel's side.
//
// Order of start: configuration from the MGS (or the one kept from last time), the MDT, the root folder, the OSTs in the
// background, the kernel. Order of stop: the kernel first, so that nothing new comes; then dirty data, reports, and the
// connections.
//
// Lock order: Mount.mu, then those of package client that Client.Forget takes. It is never held across a request.
package fs
