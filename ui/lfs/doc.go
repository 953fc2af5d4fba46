// Package lfs is the user's tool: it shows and sets how files are striped, and what a file system is made of. Commands,
// flags and output are those of the field's tool of that name (lfs(1)); where one has no meaning here it is refused by
// name, never ignored.
//
// It reaches the file system through the mount alone, by the attributes that package virtual names, so it works in any
// process that can reach the path, as the user who runs it. What a mount answers is checked before it is believed.
//
// Words (Lustre Operations Manual, "Managing File Layout (Striping) and Free Space"): layout, stripe count, stripe size,
// stripe offset (the index of the first OST), component, default layout (what new files in a folder get); FID.
//
// Exit status: 0 when everything was done, 1 when a path failed (the others are done all the same), 2 when the command
// line was wrong.
package lfs
