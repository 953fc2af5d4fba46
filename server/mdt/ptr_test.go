package mdt

import "unsafe"

// ptr gives the address of an array for a raw system call.
func ptr[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }
