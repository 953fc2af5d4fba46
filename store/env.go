package store

import "github.com/strakefs/strake/fs/env"

// EnvState is what this package and its devices keep in an Env.
type EnvState struct {
	// Tx is the transaction that Begin returns.
	Tx Tx
	// Device is a device's own scratch memory; a device that finds another's replaces it.
	Device any
}

// StateOf returns e's state, made at the first call.
func StateOf(e *env.Env) *EnvState {
	if s, ok := e.State(env.LayerStore).(*EnvState); ok {
		return s
	}
	s := &EnvState{}
	e.SetState(env.LayerStore, s)
	return s
}

// BeginTx returns e's transaction, empty: Begin of every device.
func BeginTx(e *env.Env) *Tx {
	tx := &StateOf(e).Tx
	tx.Reset()
	return tx
}
