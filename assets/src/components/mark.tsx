/** Three strakes of a hull. */
export function Mark() {
  return (
    <svg class="mark" viewBox="0 0 24 24" aria-hidden="true">
      <path d="M3 6c6 2.6 12 2.6 18 0M4.6 12c5 2.2 9.8 2.2 14.8 0M7 18c3.4 1.6 6.6 1.6 10 0" />
    </svg>
  )
}
