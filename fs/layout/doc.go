// Package layout maps a file's bytes to objects. It is pure: no I/O, no clock.
//
// Words (Lustre Operations Manual, "Managing File Layout (Striping) and Free Space"):
//
//   - stripe size: bytes that go to one object before the next takes over, a multiple of MinStripeSize.
//   - stripe count: number of objects the bytes go round.
//   - stripe: one object of the layout, on one OST.
//   - component: a range of the file's bytes with a pattern of its own; a plain layout has one, [0, EOF).
//   - template: a component without objects: a folder's default, or a wish given before creation.
//
// Invariant: components are sorted, touch each other without gap or overlap, and start at 0.
//
// Invariant: a component that is initialised has exactly StripeCount stripes, at least one.
package layout
