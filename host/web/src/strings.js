// Every word of the page, in the languages it speaks.

const EN = {
  sessions: "Sessions", new: "New session", search: "Search", nothingFound: "Nothing found.", untitled: "New session", send: "Send", stop: "Stop", queued: "queued", remove: "Remove",
  welcome: "What would you like to do?", who_answers: "Agent", folder: "Folder", toMessage: "To the message", rename: "Change the title",
  prompt: "Message", agent: "Agent", answer: "Answer", fullAccess: "Full access", model: "Model", mode: "Mode", you: "You", note: "Note to the model",
  confirmFull: "Full access allows every tool what you may do yourself, without asking. Explicit denies stay. Go on?",
  yes: "Yes", cancel: "Cancel", once: "Once", always: "Always", exact: "Exactly this", fromNowOn: "From now on", thisFolder: "this folder", refuse: "Refuse", reason: "Why not (for the model)",
  mayIt: "May it do this?", circles: "It goes in circles. Go on?", changed: "This changed since you were asked.", answered: "Answered already",
  truncated: "truncated", viewFull: "View full output", more: "More", expired: "The stored output has expired.", running: "running", arguments: "Arguments",
  waiting: "waits for you", pending: "pending", ok: "done", error: "failed", denied: "refused", interrupted: "interrupted",
  reasoning: "Reasoning", compacted: "Compacted", kept: "Summary", undoCompaction: "Undo compaction", undone: "undone", compacting: "compacting", small: "In a small window, older outputs are left out first, then older turns are summarized; at least the last turn stays whole.", notCompacted: "Not compacted",
  compact: "Compact now", compaction: "Compaction", automatic: "by itself, when the window fills", older: "Older messages", hidden: "older outputs hidden from the model",
  offline: "The server is not there. What you type is kept.", noToken: "Open the link that `moryflow serve` printed. `moryflow serve --link` prints another.",
  question: "A question waits", questions: "Questions that wait", tree: "Tree", prompts: "Prompt", plugins: "Plugins", stats: "Statistics", close: "Close",
  elsewhere: "runs in another process", runs: "runs", edit: "Edit and branch", fork: "Fork", copy: "Copy", copied: "Copied", goOn: "Go on",
  label: "Label", switchHere: "Go on from here", export: "Export", delete: "Delete", confirmDelete: "Delete this session and its outputs?",
  base: "Base of the system prompt, for all sessions", default: "Default", custom: "Custom", modelDefault: "use model default", save: "Save", saved: "Saved.", reset: "Back to the default",
  who: "Who put each block there", tokens: "tokens", window: "The window of the model", limit: "compacted from", system: "system", tools: "tools", instructions: "instructions", byPlugin: "By plugin",
  status: "Status", hooks: "Hooks", quarantine: "quarantine", ledger: "What each plugin changed", unchanged: "also what changed nothing", tier: "Tier", file: "File", importing: "Import", time: "Time",
  explain: "Explain a permission", domain: "Domain", input: "What the tool would get", ask: "Ask", attach: "Attach", thinking: "thinks", child: "Sub-agent", children: "Sub-agents", parent: "Parent session", title: "Title",
  turn: "Turn", turns: "Turns", step: "Step", steps: "Steps", cost: "Cost", cached: "cached", asked: "asked", falseAlarms: "Answered always", summaries: "Summaries", wentOn: "went on",
  searches: "Searches", hits: "hits", misses: "misses", perTurn: "Tokens by turn", perSession: "Tokens by session", shares: "Shares of the tokens", calls: "Tool calls", events: "Events", home: "This home", clients: "Clients", onboarding: "First session to first finished turn",
  user: "you", assistant: "answer", tool: "tool", turnEnded: "The turn ended", memory: "Memory", because: "because", write: "Write it", dont: "Leave it", retry: "waits to try again", reload: "Reloaded",
  end_completed: "completed", end_stopped: "stopped", end_denied: "refused", end_approval_required: "an answer is missing", end_max_steps: "the limit of steps was reached", end_doom_loop: "it went in circles",
  link: "Link", enter: "Enter", devices: "Devices", letIn: "Who is let in", here: "this browser", used: "used", revoke: "Revoke",
  toEnd: "To the end", asksFirst: "Asks first", changes: "Changes", noChanges: "No file was changed.", messages: "Messages", effort: "Effort", commands: "Commands", files: "Files", keys: "Keys", notify: "Notify me", menu: "Menu", placeholder: "Message, / for commands, @ for files",
  newLine: "new line", lastMessage: "last message again", before: "session above", after: "session below", choices: "a choice", keysBox: "In the box", keysAll: "Everywhere", keysQuestion: "At a question (Alt Q leads there)",
  today: "Today", yesterday: "Yesterday", week: "This week", ownWords: "In your own words", answerIt: "Answer",
  qr: "The link as a QR code", oneTime: "For one browser, once, within ten minutes.", onlyHere: "This server listens on this computer alone. To reach it from a phone:", fromThere: "Scan it with the phone, or paste the link there.",
  tailscale: "on this computer; Tailscale encrypts what is sent. Open the link that it prints, then scan the code of that page.", tunnel: "in an SSH app on the phone, with the name of this computer; then scan the code, or paste the link into its browser.",
  end_budget: "the limit of cost was reached", end_prompt_too_long: "the prompt is too long", end_model_error: "the model failed", end_interrupted: "interrupted",
};

const ZH = {
  sessions: "会话", new: "新会话", search: "搜索", nothingFound: "没有找到。", untitled: "新会话", send: "发送", stop: "停止", queued: "排队中", remove: "移除",
  welcome: "想做什么？", who_answers: "代理", folder: "文件夹", toMessage: "跳到输入框", rename: "修改标题",
  prompt: "消息", agent: "代理", answer: "回答", fullAccess: "完全访问", model: "模型", mode: "模式", you: "你", note: "给模型的备注",
  confirmFull: "完全访问允许所有工具执行你本人可执行的操作，且不再询问；明确的拒绝规则仍然有效。继续吗？",
  yes: "是", cancel: "取消", once: "仅此一次", always: "总是", exact: "仅限原样", fromNowOn: "从现在起", thisFolder: "此文件夹", refuse: "拒绝", reason: "拒绝的原因（给模型看）",
  mayIt: "允许这样做吗？", circles: "代理在原地打转。继续吗？", changed: "询问之后内容已变化。", answered: "已被回答",
  truncated: "已截断", viewFull: "查看完整输出", more: "更多", expired: "保存的输出已过期。", running: "运行中", arguments: "参数",
  waiting: "等待你的回答", pending: "待处理", ok: "完成", error: "失败", denied: "已拒绝", interrupted: "已中断",
  reasoning: "推理", compacted: "已压缩", kept: "摘要", undoCompaction: "撤销压缩", undone: "已撤销", compacting: "正在压缩", small: "窗口较小时，先略去较早的输出，再把较早的轮次写成摘要；至少保留最近一轮的全文。", notCompacted: "未能压缩",
  compact: "立即压缩", compaction: "压缩", automatic: "窗口将满时自动进行", older: "更早的消息", hidden: "条较早的输出已对模型隐藏",
  offline: "服务器不可用。你输入的内容已保留。", noToken: "请打开 `moryflow serve` 打印的链接；`moryflow serve --link` 可再打印一个。",
  question: "有问题等待回答", questions: "等待回答的问题", tree: "树", prompts: "提示词", plugins: "插件", stats: "统计", close: "关闭",
  elsewhere: "在另一个进程中运行", runs: "正在运行", edit: "编辑并分支", fork: "复制分支", copy: "复制", copied: "已复制", goOn: "继续",
  label: "标签", switchHere: "从这里继续", export: "导出", delete: "删除", confirmDelete: "删除此会话及其输出？",
  base: "系统提示词的基础（所有会话）", default: "默认", custom: "自定义", modelDefault: "使用模型默认值", save: "保存", saved: "已保存。", reset: "恢复默认",
  who: "各段由谁加入", tokens: "token", window: "模型窗口", limit: "压缩起点", system: "系统", tools: "工具", instructions: "指令", byPlugin: "按插件",
  status: "状态", hooks: "钩子", quarantine: "隔离", ledger: "各插件的改动", unchanged: "包括没有改动的", tier: "层级", file: "文件", importing: "导入", time: "时间",
  explain: "解释权限", domain: "领域", input: "工具将得到的内容", ask: "询问", attach: "附件", thinking: "思考中", child: "子代理", children: "子代理", parent: "上级会话", title: "标题",
  turn: "轮次", turns: "轮次", step: "步", steps: "步", cost: "费用", cached: "缓存", asked: "询问", falseAlarms: "回答“总是”", summaries: "摘要", wentOn: "之后完成",
  searches: "搜索", hits: "命中", misses: "未命中", perTurn: "每轮token", perSession: "每个会话的token", shares: "token占比", calls: "工具调用", events: "事件", home: "本机", clients: "客户端", onboarding: "首个会话到首轮完成",
  user: "你", assistant: "回答", tool: "工具", turnEnded: "本轮结束", memory: "记忆", because: "原因", write: "写入", dont: "不写", retry: "等待重试", reload: "已重新加载",
  end_completed: "完成", end_stopped: "已停止", end_denied: "已拒绝", end_approval_required: "缺少回答", end_max_steps: "达到步数上限", end_doom_loop: "原地打转",
  link: "链接", enter: "进入", devices: "设备", letIn: "已获准访问的设备", here: "此浏览器", used: "上次使用", revoke: "撤销",
  toEnd: "到末尾", asksFirst: "先询问", changes: "更改", noChanges: "没有更改文件。", messages: "消息", effort: "推理强度", commands: "命令", files: "文件", keys: "快捷键", notify: "通知我", menu: "菜单", placeholder: "消息；/ 为命令，@ 为文件",
  newLine: "换行", lastMessage: "再次编辑上一条消息", before: "上一个会话", after: "下一个会话", choices: "选项", keysBox: "在输入框中", keysAll: "任何位置", keysQuestion: "在问题上（Alt Q 跳转）",
  today: "今天", yesterday: "昨天", week: "本周", ownWords: "用自己的话回答", answerIt: "回答",
  qr: "链接的二维码", oneTime: "十分钟内供一个浏览器使用一次。", onlyHere: "此服务器只在本机监听。从手机访问：", fromThere: "用手机扫描，或在手机上粘贴链接。",
  tailscale: "在本机运行；Tailscale 会加密传输。打开它打印的链接，再扫描该页面上的二维码。", tunnel: "在手机的 SSH 应用中运行，填本机名称；然后扫描二维码，或把链接粘贴到手机浏览器。",
  end_budget: "达到费用上限", end_prompt_too_long: "提示词过长", end_model_error: "模型出错", end_interrupted: "已中断",
};

let table = EN;

/** Choose the language: that of the settings, else of the browser. */
export function speak(language) {
  const chosen = (language || navigator.language || "en").toLowerCase();
  table = chosen.startsWith("zh") ? ZH : EN;
  document.documentElement.lang = table === ZH ? "zh" : "en";
}

/** Whether the page speaks Chinese. */
export const chinese = () => table === ZH;

/** Return the words for `key`. */
export const t = (key) => table[key] ?? EN[key] ?? key;
