package rpc_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(serveEnv) != "" {
		serveAsProcess()
		return
	}
	goleak.VerifyTestMain(m)
}
