// Package osc is one OST seen from a client.
package osc
