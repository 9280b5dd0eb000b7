// Finds this page's Jupyter server.

/** The addresses of a Jupyter server. */
export interface Home {
  baseUrl: string;
  wsUrl: string;
  token: string;
}

/** Return the server of JupyterLab's settings. */
export function homeOf({ baseUrl, wsUrl, token }: Home): Home {
  return { baseUrl: new URL(baseUrl, location.href).href, wsUrl, token };
}

/** Return this page's Jupyter server; null in tools whose page names none. */
export function findHome(): Home | null {
  const element = document.getElementById('jupyter-config-data');
  if (!element) return null;
  try {
    const config = JSON.parse(element.textContent ?? '{}');
    const baseUrl = new URL(config.baseUrl ?? '/', location.href).href;
    return { baseUrl, wsUrl: config.wsUrl || baseUrl.replace(/^http/, 'ws'), token: config.token ?? '' };
  } catch {
    return null;
  }
}
