// Package mgc is the configuration client: it registers targets with the MGS, fetches the configuration, watches it,
// and reports how targets are.
//
// The last configuration is kept in a file (0600, replaced whole), so that a process can start from it while the MGS is
// silent.
//
// Every configuration's permanent parameters go to the process's tree (package stats) as they are read. What a process of
// several MGCs hears twice is applied once.
//
// Lock order: MGC.applyMu, then MGC.mu; neither is held across a request, applyMu is while parameters are set.
package mgc
