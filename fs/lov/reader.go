package lov

// Reader is what is known of how an open file is read.
type Reader struct{}
