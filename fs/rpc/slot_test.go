package rpc

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestSlotsGiveTheLowestNumber(t *testing.T) {
	s := newSlots(100, 70)
	for want := range uint32(70) {
		if n, ok := s.try(); !ok || n != 100+want {
			t.Fatalf("%d, %v, want %d", n, ok, 100+want)
		}
	}
	if n, ok := s.try(); ok {
		t.Fatalf("%d from an empty set", n)
	}
	s.release(168)
	s.release(103)
	if n, _ := s.try(); n != 103 {
		t.Fatal(n)
	}
}

func TestSlotsLimit(t *testing.T) {
	s := newSlots(0, 8)
	held := make([]uint32, 8)
	for k := range held {
		held[k], _ = s.try()
	}
	s.setLimit(2)
	for _, n := range held[2:] {
		s.release(n)
	}
	if n, ok := s.try(); ok {
		t.Fatalf("%d over the limit", n)
	}
	got := make(chan uint32)
	go func() {
		n, _ := s.acquire(context.Background(), nil)
		got <- n
	}()
	s.release(1)
	if n := <-got; n != 1 {
		t.Fatal(n)
	}
	s.setLimit(8)
	if n, ok := s.try(); !ok || n != 2 {
		t.Fatal(n, ok)
	}
}

// Numbers are never lost nor given twice, whatever the waiters do.
func TestSlotsUnderCancellation(t *testing.T) {
	const size = 4
	s := newSlots(0, size)
	var used [size]atomic.Bool
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for k := range 300 {
				ctx, cancel := context.WithCancel(context.Background())
				if k%3 == 0 {
					time.AfterFunc(time.Duration(k)*time.Microsecond, cancel)
				}
				n, err := s.acquire(ctx, nil)
				if err == nil {
					if used[n].Swap(true) {
						t.Errorf("%d was given twice", n)
					}
					used[n].Store(false)
					s.release(n)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	for range size {
		if _, ok := s.try(); !ok {
			t.Error("a number was lost")
		}
	}
	stop := make(chan struct{})
	close(stop)
	if _, err := s.acquire(context.Background(), stop); !errors.Is(err, errClosed) {
		t.Error(err)
	}
}
