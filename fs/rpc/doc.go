// Package rpc carries requests between imports (the client's half) and exports (the target's half).
package rpc
