import { useEffect, useState } from 'preact/hooks'

/** A value that components can follow. */
export class Store<T> {
  #value: T
  #listeners = new Set<() => void>()

  constructor(value: T) {
    this.#value = value
  }

  get value(): T {
    return this.#value
  }

  set(value: T): void {
    this.#value = value
    for (const listener of this.#listeners) listener()
  }

  subscribe(listener: () => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }
}

export function useStore<T>(store: Store<T>): T {
  const [, redraw] = useState(0)
  useEffect(() => store.subscribe(() => redraw((n) => n + 1)), [store])
  return store.value
}
