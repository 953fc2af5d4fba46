package mdc

import (
	"context"
	"fmt"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// fetchAhead is how many identifiers are left when the next sequence is asked for: at 30,000 creates per second half a
// second's worth, many commits of the MDT.
const fetchAhead = 16 << 10

// newFID takes the next identifier. It waits for the MDT only when both sequences are used up, and returns the MDT's
// refusal to give more.
func (m *MDC) newFID(ctx context.Context) (fid.FID, error) {
	for asked := false; ; asked = true {
		m.seqMu.Lock()
		if m.next.OID >= m.end.OID && m.spare != 0 {
			m.next = fid.FID{Seq: m.spare, OID: 1}
			m.end = fid.FID{Seq: m.spare, OID: fid.Width}
			m.spare = 0
		}
		left := m.end.OID - m.next.OID
		if left == 0 && asked && m.seqErr != nil && m.fetching == nil {
			err := m.seqErr
			m.seqMu.Unlock()
			return fid.FID{}, fmt.Errorf("mdc: new file identifier: %w", err)
		}
		// A refusal is not asked about again with every create.
		again := m.seqErr == nil || left%(fetchAhead/64) == 0
		if left < fetchAhead && m.spare == 0 && m.fetching == nil && again {
			if err := m.closes.context().Err(); err != nil {
				m.seqMu.Unlock()
				return fid.FID{}, fmt.Errorf("mdc: new file identifier: %w", err)
			}
			m.fetching = make(chan struct{})
			m.wait.Add(1)
			go m.fetchSeq(m.fetching, m.life)
		}
		if left > 0 {
			f := m.next
			m.next.OID++
			m.seqMu.Unlock()
			return f, nil
		}
		wait := m.fetching
		m.seqMu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return fid.FID{}, ctx.Err()
		}
	}
}

// overtakenMax bounds the identifiers that one operation uses up.
const overtakenMax = 4

// withFID runs a request that makes an inode under a fresh identifier. Requests overtake each other on their way; one whose
// identifier has fallen too far behind by then has done nothing, and is sent again under another one.
func (m *MDC) withFID(ctx context.Context, do func(f fid.FID) error) error {
	for n := 1; ; n++ {
		f, err := m.newFID(ctx)
		if err != nil {
			return err
		}
		if err = do(f); n == overtakenMax || status.Of(err) != status.Overtaken {
			return err
		}
	}
}

// ForgetSequences gives the sequences up: an MDT that has evicted this client does not take them any more.
func (m *MDC) ForgetSequences() {
	m.seqMu.Lock()
	defer m.seqMu.Unlock()
	m.next, m.end, m.spare = fid.FID{}, fid.FID{}, 0
	m.life++
}

// fetchSeq asks the MDT for a sequence. It ends with the MDC: its context is the queue's.
func (m *MDC) fetchSeq(done chan struct{}, life uint64) {
	defer m.wait.Done()
	var p wirepb.SeqReply
	_, err := m.call(m.closes.context(), wire.OpSeq, nil, &p, nil)
	seq := fid.Seq(p.First)
	if err == nil && (seq < fid.SeqFirst || seq > fid.SeqLast) {
		err = status.Errorf(status.Protocol, "mdc: the MDT gave sequence %#x", p.First)
	}
	if err != nil && m.closes.context().Err() == nil {
		m.log.Error("no file identifiers from the MDT", "err", err)
	}
	m.seqMu.Lock()
	defer m.seqMu.Unlock()
	if m.seqErr = err; err == nil && life == m.life {
		m.spare = seq
	}
	m.fetching = nil
	close(done)
}
