// Package mgc is the configuration client: it registers targets with the MGS, fetches the configuration, watches it,
// and reports how targets are.
//
// The last configuration is kept in a file (0600, replaced whole), so that a process can start from it while the MGS is
// silent.
//
// Lock order: MGC.mu alone, never held across a request.
package mgc
