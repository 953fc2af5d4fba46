package fusefs

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSignalAloneDoesNotEndARequest(t *testing.T) {
	var w watcher
	w.start()
	defer w.close()
	cancel := make(chan struct{})
	close(cancel)
	c := w.begin(cancel, uint32(os.Getpid()))
	defer w.free(c)
	select {
	case <-c.Done():
		t.Fatal("ended although the caller lives on")
	case <-time.After(3 * watchEvery):
	}
}

func TestKilledCallerEndsItsRequest(t *testing.T) {
	var w watcher
	w.start()
	defer w.close()
	child := exec.Command("true")
	if err := child.Run(); err != nil {
		t.Fatal(err)
	}
	cancel := make(chan struct{})
	c := w.begin(cancel, uint32(child.Process.Pid))
	defer w.free(c)
	close(cancel)
	select {
	case <-c.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("a request outlives its caller")
	}
	if c.Err() == nil {
		t.Fatal("Err is nil after Done")
	}
}

func TestRequestContextDoesNotAllocate(t *testing.T) {
	var w watcher
	w.start()
	defer w.close()
	cancel := make(chan struct{})
	w.free(w.begin(cancel, 1))
	if n := testing.AllocsPerRun(1000, func() { w.free(w.begin(cancel, 1)) }); n > 0.1 {
		t.Fatalf("%v allocations per request", n)
	}
}
