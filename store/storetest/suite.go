package storetest

import "testing"

// Run runs the suite on disks of one kind.
func Run(t *testing.T, maker Maker) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, Maker)
	}{
		{"PutGetDelete", testPutGetDelete},
		{"ScanBounds", testScanBounds},
		{"ScanInScan", testScanInScan},
		{"Deltas", testDeltas},
		{"Stamps", testStamps},
		{"ReplayOrder", testReplayOrder},
		{"TransactionAppearsWhole", testTransactionAppearsWhole},
		{"CommitCallbacks", testCommitCallbacks},
		{"WaitEndsWithContext", testWaitEndsWithContext},
		{"TimerCommits", testTimerCommits},
		{"ReopenKeepsAll", testReopenKeepsAll},
		{"CrashKeepsAPrefix", testCrashKeepsAPrefix},
		{"StartCount", testStartCount},
		{"Stopped", testStopped},
		{"Model", testModel},
		{"ParallelPublish", testParallelPublish},
		{"ParallelDeltas", testParallelDeltas},
		{"ObjectLife", testObjectLife},
		{"ObjectRemovedWhileOpen", testObjectRemovedWhileOpen},
		{"ObjectHoles", testObjectHoles},
		{"ObjectFallocate", testObjectFallocate},
		{"ObjectBadArguments", testObjectBadArguments},
		{"ObjectModel", testObjectModel},
		{"ObjectsSurviveFlush", testObjectsSurviveFlush},
		{"ObjectsParallel", testObjectsParallel},
		{"Statfs", testStatfs},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, maker) })
	}
}
