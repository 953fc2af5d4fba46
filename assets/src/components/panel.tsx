import type { ComponentChildren } from 'preact'

/** A part of a page: title, what it is in a word, its JSON, its content. */
export function Panel(props: { id: string; title: string; note?: ComponentChildren; json?: string; children: ComponentChildren }) {
  return (
    <section class="panel" id={props.id} aria-labelledby={props.id + '-title'}>
      <div class="panel-head">
        <h2 id={props.id + '-title'}>{props.title}</h2>
        {props.note && <span class="panel-note">{props.note}</span>}
        {props.json && (
          <a class="panel-json" href={props.json}>
            JSON
          </a>
        )}
      </div>
      {props.children}
    </section>
  )
}
