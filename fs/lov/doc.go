// Package lov is one file over many OSCs.
package lov
